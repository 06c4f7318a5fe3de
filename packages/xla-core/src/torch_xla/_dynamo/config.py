"""Switches of the `openxla` backend: the module that the implementation reads, under its name for users."""

import sys

from xla_core.features.dynamo import config

sys.modules[__name__] = config
