"""Utilities. This package is shared: other wheels add modules below it."""

__path__ = __import__("pkgutil").extend_path(__path__, __name__)
