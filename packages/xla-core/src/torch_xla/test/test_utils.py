"""Print and log the progress of example programs."""

from xla_core.api.training_report import close_summary_writer as close_summary_writer
from xla_core.api.training_report import get_summary_writer as get_summary_writer
from xla_core.api.training_report import mp_test as mp_test
from xla_core.api.training_report import now as now
from xla_core.api.training_report import print_test_update as print_test_update
from xla_core.api.training_report import print_training_update as print_training_update
from xla_core.api.training_report import write_to_summary as write_to_summary

__all__ = [name for name in dir() if not name.startswith("__")]
