"""Stands in where no installed wheel has this package; with the modules of one that is installed, it is the package."""

from __future__ import annotations

import pkgutil

from xla_core.facade.siblings import refuse_import

__path__ = pkgutil.extend_path([], __name__)  # this folder comes last, as in the parent's path

if len(__path__) == 1:
    refuse_import(__name__)
