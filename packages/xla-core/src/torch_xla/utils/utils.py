"""Small helpers (alias `xu`)."""

from __future__ import annotations

from xla_core.base.nesting import DataWrapper, for_each_instance, for_each_instance_rewrite
from xla_core.legacy.utils import (
    Cleaner,
    FnDataGenerator,
    LazyProperty,
    SampleGenerator,
    TimedScope,
    TmpFolder,
    as_list,
    check_env_flag,
    eprint,
    flatten_nested_tuple,
    get_free_tcp_ports,
    get_print_fn,
    getenv_as,
    list_copy_append,
    null_print,
    parallel_work,
    shape,
    timed,
)

__all__ = [
    "Cleaner",
    "DataWrapper",
    "FnDataGenerator",
    "LazyProperty",
    "SampleGenerator",
    "TimedScope",
    "TmpFolder",
    "as_list",
    "check_env_flag",
    "eprint",
    "flatten_nested_tuple",
    "for_each_instance",
    "for_each_instance_rewrite",
    "get_free_tcp_ports",
    "get_print_fn",
    "getenv_as",
    "list_copy_append",
    "null_print",
    "parallel_work",
    "shape",
    "timed",
]
