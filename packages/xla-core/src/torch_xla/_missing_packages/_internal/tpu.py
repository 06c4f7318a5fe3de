"""Stands in where xla-distributed is not installed, to say so."""

from xla_core.api.plugins import refuse_import

refuse_import(__name__)
