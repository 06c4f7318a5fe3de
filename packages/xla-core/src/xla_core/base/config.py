"""Every environment variable that the core reads: one typed row each, parsed whenever it is asked for.

Nothing else may touch `os.environ` (`tests/test_structure.py` has the exceptions). A value that does not parse raises an error that says
what is allowed; an empty text counts as unset. The documentation page of variables is generated from `SETTINGS`.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from xla_core.base import installation

T = TypeVar("T")


class FallbackPolicy(enum.Enum):
    """The policy for operations without an XLA lowering."""

    ALLOW = "allow"
    ERROR = "error"


class SealMode(enum.Enum):
    """What a sealed process makes of what it may not do. WARN lets it happen."""

    ERROR = "error"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One variable. parse: raises ValueError for a bad text; allowed: completes the sentence "must be …"."""

    name: str
    default: T
    doc: str
    parse: Callable[[str], T] = field(repr=False)
    allowed: str

    def text(self) -> str:
        """The text in the environment now; empty if the variable is not set."""
        return os.environ.get(self.name, "")

    def get(self) -> T:
        """The value now. Raises ValueError, which names the variable, its text and what is allowed."""
        text = self.text()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise ValueError(f"environment variable {self.name} is {text!r}, must be {self.allowed}") from None

    def is_set(self) -> bool:
        """Whether the environment has a value, so that the default does not apply."""
        return bool(self.text())

    def set(self, value: T | None) -> None:
        """Write `value` to the environment, also for child processes; None removes the variable."""
        if value is None:
            os.environ.pop(self.name, None)
            return
        text = _text(value)
        if self.parse(text) != value:
            raise ValueError(f"environment variable {self.name} cannot be set to {value!r}, must be {self.allowed}")
        os.environ[self.name] = text


def _text(value: object) -> str:
    """The environment's spelling of a parsed value."""
    if isinstance(value, bool):
        return str(int(value))
    return str(value.value) if isinstance(value, enum.Enum) else str(value)


@contextmanager
def override(setting: Setting[T], value: T | None) -> Iterator[None]:
    """Give `setting` another value inside the block (None: unset), for the whole process."""
    before = os.environ.get(setting.name)
    setting.set(value)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(setting.name, None)
        else:
            os.environ[setting.name] = before


def _parse_bool(text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        number = int(text)
        if number < 0:
            raise ValueError(text)
        value = number > 0
    return value


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < minimum:
            raise ValueError(text)
        return number

    return parse


def _parse_fraction(text: str) -> float:
    number = float(text)
    if not 0.0 <= number <= 1.0:
        raise ValueError(text)
    return number


Truth = TypeVar("Truth", bool, bool | None)
Number = TypeVar("Number", int, int | None)


def flag(name: str, default: Truth, doc: str) -> Setting[Truth]:
    """The row of a variable that is on or off; with default None it may also be neither."""
    return Setting(name, default, doc, _parse_bool, "0, 1, true or false")


def integer(name: str, default: Number, doc: str, minimum: int = 0) -> Setting[Number]:
    """The row of an integer of at least `minimum`; with default None it may be absent."""
    return Setting(name, default, doc, _at_least(minimum), f"an integer of at least {minimum}")


def text(name: str, doc: str) -> Setting[str | None]:
    """The row of a text; None if it is not set."""
    return Setting(name, None, doc, str, "a text")


# Behaviour of tensors and steps.
ALWAYS_ALLREDUCE = flag("XLA_ALWAYS_ALLREDUCE", False, "`all_reduce` issues a collective even for one replica.")
ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB = integer(
    "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", 0, "Above 0, gradients are reduced in buckets of this many MiB, the last gradient first."
)
RATE_TRACKER_SMOOTHING = Setting(
    "RATE_TRACKER_SMOOTHING", 0.4, "Share of the previous rate in `RateTracker.rate()`.", _parse_fraction, "a number from 0 to 1"
)
EMIT_STEPLOG = flag("XLA_EMIT_STEPLOG", False, "Each step sync writes one line to stderr.")
SYNC_WAIT: Setting[bool | None] = flag("XLA_SYNC_WAIT", None, "When set, replaces the `wait` argument of step syncs.")
USE_SPMD = flag("XLA_USE_SPMD", False, "SPMD mode: one virtual device over all physical ones. Fixed when the devices start.")
AUTO_SPMD = flag("XLA_AUTO_SPMD", False, "SPMD mode: uploaded tensors are sharded over all devices by a policy, see docs/spmd.md.")
USE_BF16 = flag(
    "XLA_USE_BF16", False, "`float32` and `float64` are computed as bfloat16; wins over XLA_DOWNCAST_BF16. Fixed with the first tensor."
)
DOWNCAST_BF16 = flag("XLA_DOWNCAST_BF16", False, "`float32` is computed as bfloat16, `float64` as float32. Fixed with the first tensor.")
USE_32BIT_LONG = flag("XLA_USE_32BIT_LONG", False, "`int64` is computed as int32. Fixed with the first tensor.")
NO_SPECIAL_SCALARS = flag(
    "XLA_NO_SPECIAL_SCALARS", False, "Python numbers are inputs of a program from the start, not constants until they change."
)
FALLBACK = Setting(
    "XLA_FALLBACK",
    FallbackPolicy.ALLOW,
    "Operations without lowering: `allow` runs them on the CPU, `error` raises FallbackError.",
    FallbackPolicy,
    "allow or error",
)
USE_EAGER_DEBUG_MODE = flag("XLA_USE_EAGER_DEBUG_MODE", False, "Every operation runs as soon as it is recorded.")
MAX_PENDING = integer(
    "XLA_MAX_PENDING",
    20000,
    "Operations, with their inputs, that may be pending on a device; with more, a loop without `torch_xla.sync()` is run turn by turn, and "
    "the same when a value is read by a program of 500. 0: no limit.",
)
MAX_ASYNC_QUEUE = integer("XLA_MAX_ASYNC_QUEUE", 100, "Step closures that may wait for the background thread.", minimum=1)
CHECKS = flag(
    "XLA_CHECKS",
    True,
    "Programs test what only data shows to be wrong, such as an index out of range; torch's error is raised when a value is read or at a "
    "later sync. Read when a program is compiled.",
)

# Hardware, processes and replicas.
PJRT_DEVICE = text("PJRT_DEVICE", "Hardware kind, such as CPU or TPU; chosen at first use when unset.")
PJRT_SELECT_DEFAULT_DEVICE = flag("PJRT_SELECT_DEFAULT_DEVICE", True, "Choose the hardware kind when PJRT_DEVICE is unset.")
TARGET = text("XLA_TARGET", "Devices to compile for that this machine has not, such as v5e:4x4; nothing runs (`torch_xla.target`).")
CPU_NUM_DEVICES = integer("CPU_NUM_DEVICES", 1, "Number of CPU devices, and of the replicas that `spawn` starts on them.", minimum=1)
PJRT_DYNAMIC_PLUGINS = flag("PJRT_DYNAMIC_PLUGINS", False, "Register all installed plugins (`torch_xla.plugins`) when devices start.")
PJRT_CPU_ASYNC_CLIENT = flag("PJRT_CPU_ASYNC_CLIENT", True, "The CPU client runs programs in the background.")
LOCAL_RANK = integer("LOCAL_RANK", None, "Number of this process on its host, as torchrun sets it. Fixed when the devices start.")
RANK = integer("RANK", None, "Number of this process in the job, as torchrun sets it. Fixed when the devices start.")
WORLD_SIZE = integer("WORLD_SIZE", None, "Processes of the job, as torchrun sets it. Fixed when the devices start.", minimum=1)
LOCAL_WORLD_SIZE = integer("LOCAL_WORLD_SIZE", None, "Processes of the job on this host, as torchrun sets it. Fixed as RANK is.", minimum=1)
MASTER_ADDR = text("MASTER_ADDR", "Address of the host where the processes of a job meet, process 0's.")

# Compiled programs.
XLA_FLAGS = text("XLA_FLAGS", "XLA's own options, or a file of them; XLA reads them when the devices start.")
LIBTPU_INIT_ARGS = text(
    "LIBTPU_INIT_ARGS",
    "Options of the TPU's compiler, which reads them when it is loaded; of them `--xla_tpu_scoped_vmem_limit_kib` also allows attention "
    "kernels larger blocks.",
)
COMPILATION_CACHE_SIZE = integer(
    "XLA_COMPILATION_CACHE_SIZE",
    2048,
    "Compiled programs kept in memory; fewer where they would take most of the memory mappings that Linux allows a process.",
    minimum=1,
)
PERSISTENT_CACHE_PATH = text("XLA_PERSISTENT_CACHE_PATH", "Folder of the on-disk compilation cache; none when unset.")
PERSISTENT_CACHE_READ_ONLY = flag("XLA_PERSISTENT_CACHE_READ_ONLY", False, "Look up the on-disk compilation cache, never write it.")
TIERED_COMPILATION = flag(
    "XLA_TIERED_COMPILATION",
    True,
    "Compile small programs for the CPU, and all for TPUs, quickly first, and those that are used again and again once more, in the "
    "background; not with a cache on disk.",
)

SEAL = Setting(
    "XLA_SEAL",
    SealMode.ERROR,
    "What `torch_xla.seal()` makes of a program that was not compiled before: `error` raises SealedError, `warn` compiles it, and lists "
    "all of them at exit.",
    SealMode,
    "error or warn",
)

# Debugging.
ENFORCE_BUDGETS = flag(
    "XLA_ENFORCE_BUDGETS",
    False,
    "For tests: a public function that compiles more programs or reads more values than is declared beside it raises. Read at import.",
)
REFERENCE = flag(
    "XLA_REFERENCE_EXECUTOR",
    False,
    "Programs are evaluated operator by operator, each compiled by itself, instead of as a whole: slower, to find out whether a wrong "
    "number is the compiler's. Read when a program is compiled; not for replicas.",
)
HLO_DEBUG = flag("XLA_HLO_DEBUG", False, "Source locations of the user's code in StableHLO.")
IR_DEBUG = flag("XLA_IR_DEBUG", False, "Every recorded operation keeps the user's line.")
CORE_VERIFY = integer("XLA_CORE_VERIFY", 0, "From 1 on, graphs are verified between passes.")
METRICS_SAMPLES = integer("XLA_METRICS_SAMPLES", 1024, "Samples that a metric keeps.", minimum=1)
SAVE_HLO_FILE = text("XLA_SAVE_HLO_FILE", "File to which the HLO of a program that failed to compile is appended.")
DUMP_HLO_GRAPH = flag("XLA_DUMP_HLO_GRAPH", False, "Put the HLO of a program that failed to compile into the error message.")
DYNAMO_DEBUG = flag("XLA_DYNAMO_DEBUG", False, "Log what the `openxla` backend of `torch.compile` does.")


SETTINGS: tuple[Setting[object], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Setting))


def installed_settings() -> dict[str, tuple[Setting[object], ...]]:
    """The variables that each installed distribution reads, by its name: from its entry point of group `xla_core.settings`."""
    return {name: tuple(rows) for name, rows in installation.load("xla_core.settings")}
