"""The version of the wheel xla-core; read by the build, and by nothing that must not change with it."""

__version__ = "0.2.0"
