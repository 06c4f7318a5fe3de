"""Stands in where xla-spmd is not installed, to say so."""

from xla_core.facade.siblings import refuse_import

refuse_import(__name__)
