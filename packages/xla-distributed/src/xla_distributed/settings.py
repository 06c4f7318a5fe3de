"""Every environment variable that this package reads, beside those of the core."""

from __future__ import annotations

from xla_core.abi.process import Setting


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _flag(text: str) -> bool:
    known = {"1": True, "true": True, "0": False, "false": False}.get(text.strip().lower())
    if known is None:
        raise ValueError(text)
    return known


def _number(name: str, doc: str) -> Setting[int | None]:
    return Setting(name, None, doc, _count, "an integer of at least 0")


def _text(name: str, doc: str) -> Setting[str | None]:
    return Setting(name, None, doc, str, "a text")


COLLECTIVE_TIMEOUT_SECONDS = Setting(
    "XLA_COLLECTIVE_TIMEOUT_SECONDS", 600.0, "How long replicas wait for one that does not arrive.", _positive, "a number above 0"
)
HEARTBEAT_TIMEOUT_SECONDS = Setting(
    "XLA_HEARTBEAT_TIMEOUT_SECONDS",
    60.0,
    "How long a process of a job, on another host than process 0, may say nothing before the others end without it.",
    _positive,
    "a number above 0",
)
JOB_KEY = _text("XLA_JOB_KEY", "Secret that only the processes of a job know: others cannot join it.")
BUCKET_SIZE_MB = Setting(
    "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB",
    0,
    "Above 0, gradients are reduced in buckets of this many MiB, the last gradient first.",
    _count,
    "an integer of at least 0",
)

USE_DUMMY_STORE = Setting(
    "XLA_USE_DUMMY_STORE",
    False,
    "Init method `xla://` gives torch a store that keeps nothing: groups of backend `xla` need none.",
    _flag,
    "0, 1, true or false",
)

# The place of a process in its job, as torchrun sets it; `spawn` sets the same for its children.
RANK = _number("RANK", "Number of this process in the job.")
WORLD_SIZE = _number("WORLD_SIZE", "Processes of the job.")
LOCAL_RANK = _number("LOCAL_RANK", "Number of this process on its host.")
LOCAL_WORLD_SIZE = _number("LOCAL_WORLD_SIZE", "Processes of the job on this host.")
MASTER_ADDR = _text("MASTER_ADDR", "Host of process 0.")
MASTER_PORT = _number("MASTER_PORT", "Port of the store by which the processes of a job find each other; 12355 if it is not set.")
PJRT_LOCAL_PROCESS_RANK = _number("PJRT_LOCAL_PROCESS_RANK", "As LOCAL_RANK, for readers of the older name.")
PJRT_LOCAL_PROCESS_COUNT = _number("PJRT_LOCAL_PROCESS_COUNT", "As LOCAL_WORLD_SIZE, for readers of the older name.")
CPU_NUM_DEVICES = _number("CPU_NUM_DEVICES", "CPU devices: how many replicas `spawn` starts on CPU.")
GPU_NUM_DEVICES = _number("GPU_NUM_DEVICES", "GPUs: how many replicas `spawn` starts on GPUs; all that the driver lists if it is not set.")
CUDA_VISIBLE_DEVICES = _text("CUDA_VISIBLE_DEVICES", "The GPUs that this process may use.")
# Set by managers of clusters (`job/cluster.py`).
SLURM_STEP_NUM_TASKS = _number("SLURM_STEP_NUM_TASKS", "Slurm: processes of the step that this process is of.")
JOB_COMPLETION_INDEX = _number("JOB_COMPLETION_INDEX", "Kubernetes: number of this pod in an indexed job.")
# Set by torchrun.
AGENT_STORE = _text("TORCHELASTIC_USE_AGENT_STORE", "`True` where torchrun itself serves the store of a job.")
RUN_ID = _text("TORCHELASTIC_RUN_ID", "Name of a torchrun job.")
RESTART_COUNT = _number("TORCHELASTIC_RESTART_COUNT", "How often torchrun has restarted the job.")

SETTINGS: tuple[Setting[object], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Setting))
