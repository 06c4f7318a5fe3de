"""Every environment variable that this package reads, beside those of the core."""

from __future__ import annotations

from xla_core.abi.settings import Setting, flag, integer, text


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


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
JOB_KEY = text("XLA_JOB_KEY", "Secret that only the processes of a job know: others cannot join it.")

USE_DUMMY_STORE = flag(
    "XLA_USE_DUMMY_STORE", False, "Init method `xla://` gives torch a store that keeps nothing: groups of backend `xla` need none."
)

# The place of a process in its job, beside the rows that the core has of it; `spawn` sets the same for its children.
MASTER_PORT = integer("MASTER_PORT", None, "Port of the store by which the processes of a job find each other; 12355 if it is not set.")
PJRT_LOCAL_PROCESS_RANK = integer("PJRT_LOCAL_PROCESS_RANK", None, "As LOCAL_RANK, for readers of the older name.")
PJRT_LOCAL_PROCESS_COUNT = integer("PJRT_LOCAL_PROCESS_COUNT", None, "As LOCAL_WORLD_SIZE, for readers of the older name.")
GPU_NUM_DEVICES = integer("GPU_NUM_DEVICES", None, "How many replicas `spawn` starts on GPUs; all that the driver lists if it is not set.")
CUDA_VISIBLE_DEVICES = text("CUDA_VISIBLE_DEVICES", "The GPUs that this process may use.")
# Set by managers of clusters (`job/cluster.py`).
SLURM_STEP_NUM_TASKS = integer("SLURM_STEP_NUM_TASKS", None, "Slurm: processes of the step that this process is of.")
JOB_COMPLETION_INDEX = integer("JOB_COMPLETION_INDEX", None, "Kubernetes: number of this pod in an indexed job.")
# Set by torchrun.
AGENT_STORE = text("TORCHELASTIC_USE_AGENT_STORE", "`True` where torchrun itself serves the store of a job.")
RUN_ID = text("TORCHELASTIC_RUN_ID", "Name of a torchrun job.")
RESTART_COUNT = integer("TORCHELASTIC_RESTART_COUNT", None, "How often torchrun has restarted the job.")

# TPU hosts: the slice, the place of a host in it and of a process on its host. A host says them, or libtpu reads what we set.
TPU_LIBRARY_PATH = text("TPU_LIBRARY_PATH", "The library libtpu, where it is not that of the package `libtpu`.")
GCE_METADATA_HOST = text("GCE_METADATA_HOST", "Google Cloud: another metadata server.")
TPU_SKIP_MDS_QUERY = Setting(
    "TPU_SKIP_MDS_QUERY",
    False,
    "The environment says all of a TPU slice: no metadata server is asked. JAX sets it where there is no TPU.",
    lambda text: text.lower() not in ("0", "false"),
    "0, false, or another text for yes",
)
TPU_ACCELERATOR_TYPE = text("TPU_ACCELERATOR_TYPE", "Type of the TPU slice, such as v4-16.")
ACCELERATOR_TYPE = text("ACCELERATOR_TYPE", "As TPU_ACCELERATOR_TYPE, an older name.")
TPU_PROCESS_BOUNDS = text("TPU_PROCESS_BOUNDS", "TPU slice: processes along each axis, such as 2,2,1.")
TPU_CHIPS_PER_PROCESS_BOUNDS = text("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU slice: chips of a process along each axis.")
TPU_HOST_BOUNDS = text("TPU_HOST_BOUNDS", "As TPU_PROCESS_BOUNDS, an older name.")
TPU_CHIPS_PER_HOST_BOUNDS = text("TPU_CHIPS_PER_HOST_BOUNDS", "As TPU_CHIPS_PER_PROCESS_BOUNDS, an older name.")
TPU_PROCESS_ADDRESSES = text("TPU_PROCESS_ADDRESSES", "TPU slice: addresses of its processes, with ports, with commas between them.")
TPU_PROCESS_PORT = integer("TPU_PROCESS_PORT", None, "TPU slice: port at which the others find this process.")
TPU_WORKER_HOSTNAMES = text("TPU_WORKER_HOSTNAMES", "TPU slice: its hosts, host 0 first, with commas between them.")
TPU_WORKER_ID = integer("TPU_WORKER_ID", None, "TPU slice: number of this host.")
WORKER_ID = integer("WORKER_ID", None, "As TPU_WORKER_ID, an older name.")
CLOUD_TPU_TASK_ID = integer("CLOUD_TPU_TASK_ID", None, "TPU slice: number of this process.")
TPU_VISIBLE_CHIPS = text("TPU_VISIBLE_CHIPS", "The TPU chips of this host that this process may use, by number, with commas between them.")

SETTINGS: tuple[Setting[object], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Setting))
