"""TPU hosts: what PCI devices, environment variables and the metadata server tell of them; nothing here starts a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xla_core.abi.settings import Setting
from xla_distributed import settings
from xla_distributed.job.tpu.gce_metadata import get_metadata
from xla_distributed.job.tpu.slices import KNOWN_SLICES, MeshShape, SliceBounds

PCI_DEVICES = Path("/sys/bus/pci/devices")
GOOGLE_PCI_VENDOR_ID = "0x1ae0"
# PCI device ids of TPU generations, and how many devices (cores) each chip shows.
_CORES = {
    "0x0027": 2,  # v2 and v3
    "0x005e": 1,  # v4
    "0x0062": 1,  # v5p
    "0x0063": 1,  # v5e
    "0x006f": 1,  # v6e
    "0x0076": 2,  # v7x
    "0x007c": 1,  # 8t
    "0x0083": 2,  # 8i
}
TPU_PCI_DEVICE_IDS = list(_CORES)
_GENERATIONS_OF_TWO_CORES = (2, 3, 7)


def _chips() -> list[str]:
    """The PCI device ids of the TPU chips of this host."""
    google = [vendor for vendor in PCI_DEVICES.glob("*/vendor") if vendor.read_text().strip() == GOOGLE_PCI_VENDOR_ID]
    device_ids = [vendor.with_name("device").read_text().strip() for vendor in google]
    return [device_id for device_id in device_ids if device_id in _CORES]


def num_available_chips() -> int:
    """TPU chips that this host has, from its PCI devices."""
    return len(_chips())


def num_visible_chips() -> int:
    """TPU chips of this host that this process may use, by TPU_VISIBLE_CHIPS; all if it is not set."""
    chips, chosen = num_available_chips(), settings.TPU_VISIBLE_CHIPS.get()
    return min(chips, len(chosen.split(","))) if chosen else chips


def num_available_devices() -> int:
    """TPU devices that this host's processes may use: 0 off TPU."""
    chips = _chips()
    return num_visible_chips() * _CORES[chips[0]] if chips else 0


def using_env_vars() -> bool:
    """Whether TPU_SKIP_MDS_QUERY says that the environment is all there is, as on GKE: no metadata server is asked. JAX sets it off TPU."""
    return settings.TPU_SKIP_MDS_QUERY.get()


class TpuEnv(dict[str, str]):
    """The variables that describe a slice and the place of this host in it, by name."""

    @property
    def accelerator_type(self) -> str | None:
        """Such as `v4-16`."""
        return self.get(settings.TPU_ACCELERATOR_TYPE.name) or self.get(settings.ACCELERATOR_TYPE.name)

    def bounds(self) -> Iterator[SliceBounds]:
        """The bounds of the slice from each complete pair of variables. Raises ValueError for what is no shape."""
        for processes, chips in _BOUNDS:
            if self.get(processes) and self.get(chips):
                yield SliceBounds(MeshShape.from_string(self[processes]), MeshShape.from_string(self[chips]))


# Pairs of variables: processes of the slice and chips of each. The second are older names, the third those of the metadata server.
_BOUNDS = (
    (settings.TPU_PROCESS_BOUNDS.name, settings.TPU_CHIPS_PER_PROCESS_BOUNDS.name),
    (settings.TPU_HOST_BOUNDS.name, settings.TPU_CHIPS_PER_HOST_BOUNDS.name),
    ("HOST_BOUNDS", "CHIPS_PER_HOST_BOUNDS"),
)
_DESCRIBING: tuple[Setting[str | None] | Setting[int | None], ...] = (
    settings.ACCELERATOR_TYPE,
    settings.TPU_ACCELERATOR_TYPE,
    settings.TPU_PROCESS_BOUNDS,
    settings.TPU_CHIPS_PER_PROCESS_BOUNDS,
    settings.TPU_HOST_BOUNDS,
    settings.TPU_CHIPS_PER_HOST_BOUNDS,
    settings.TPU_PROCESS_ADDRESSES,
    settings.TPU_WORKER_HOSTNAMES,
    settings.TPU_WORKER_ID,
    settings.WORKER_ID,
)


def build_tpu_env_from_vars() -> TpuEnv:
    """The slice as the environment variables alone say; empty off TPU."""
    return TpuEnv({row.name: str(row.get()) for row in _DESCRIBING if row.is_set()})


def metadata_env() -> TpuEnv:
    """The slice as the metadata server says, in the lines `NAME: 'value'` of the attribute `tpu-env`; empty if it is not to be asked."""
    if using_env_vars():
        return TpuEnv()
    lines = (line.partition(":") for line in get_metadata("tpu-env").splitlines())
    return TpuEnv({name.strip(): text.strip().strip("'\"") for name, colon, text in lines if colon})


def get_tpu_env() -> TpuEnv:
    """The slice and this host's place in it: from the environment, which wins, and the metadata server. Empty off TPU."""
    return TpuEnv({**metadata_env(), **build_tpu_env_from_vars()})


def get_tpu_type() -> str:
    """The type of the slice, such as `v4-16`. Raises RuntimeError off TPU."""
    slice_type = build_tpu_env_from_vars().accelerator_type
    if slice_type is None and not using_env_vars():
        slice_type = get_metadata("accelerator-type").strip()
    if not slice_type:
        raise RuntimeError("the type of this host's TPU slice is unknown: set TPU_ACCELERATOR_TYPE, to a text such as v4-8")
    return slice_type


def version() -> int:
    """The TPU generation, such as 4. Raises RuntimeError off TPU."""
    slice_type = get_tpu_type()
    digits = "".join(letter for letter in slice_type.partition("-")[0] if letter.isdigit())
    if not digits:
        raise RuntimeError(f"this host's TPU generation is unknown: TPU_ACCELERATOR_TYPE is {slice_type!r}, expected a text such as v4-8")
    return int(digits)


def num_logical_cores_per_chip() -> int:
    """Devices that each chip shows: 2 for v2, v3 and v7x, else 1. Raises RuntimeError off TPU."""
    return 2 if version() in _GENERATIONS_OF_TWO_CORES else 1


def worker_hostnames() -> list[str]:
    """Hosts of the slice, host 0 first; empty where the environment does not say."""
    listed = settings.TPU_WORKER_HOSTNAMES.get()
    if listed:
        return [host.strip() for host in listed.split(",")]
    addresses = settings.TPU_PROCESS_ADDRESSES.get()
    hosts = [address.strip().rpartition(":")[0] for address in addresses.split(",")] if addresses else []
    return list(dict.fromkeys(hosts))


def get_worker_ips() -> list[str]:
    """Hosts of the slice, host 0 first, from the environment or the metadata server; one by itself is `localhost`.

    Raises RuntimeError if the metadata server is to say and does not.
    """
    hosts = worker_hostnames()
    if not hosts and not using_env_vars():
        hosts = [_address(endpoint.strip()) for endpoint in get_metadata("worker-network-endpoints").split(",")]
    return hosts if len(hosts) > 1 else ["localhost"]


def _address(endpoint: str) -> str:
    """The address of a worker that the metadata server lists: by itself, or last of `name:number:address`."""
    parts = endpoint.split(":")
    if len(parts) not in (1, 3):
        raise RuntimeError(f"worker-network-endpoints of the metadata server has {endpoint!r}: expected an address or name:number:address")
    return parts[-1]


def num_tpu_workers() -> int:
    """Hosts of the slice."""
    return len(get_worker_ips())


def task_id() -> int:
    """Number of this process in the slice."""
    return settings.CLOUD_TPU_TASK_ID.get() or 0


def worker_id() -> int:
    """Number of this host in the slice. Raises RuntimeError if the metadata server is to say and does not."""
    for row in (settings.TPU_WORKER_ID, settings.WORKER_ID):
        index = row.get()
        if index is not None:
            return index
    return 0 if using_env_vars() else int(get_metadata("agent-worker-number"))


def possible_bounds() -> Iterator[SliceBounds]:
    """The bounds of this host's slice from each source, the most trustworthy first: environment, metadata, name.

    For v2 and v3 the name comes before the metadata, whose bounds there are not the bounds of the processes.
    """
    yield from build_tpu_env_from_vars().bounds()
    by_metadata = list(metadata_env().bounds())
    try:
        slice_type = get_tpu_type()
    except RuntimeError:
        yield from by_metadata
        return
    by_name = [KNOWN_SLICES[slice_type]] if slice_type in KNOWN_SLICES else []
    yield from (*by_name, *by_metadata) if version() < 4 else (*by_metadata, *by_name)


def process_bounds_size() -> int | None:
    """Processes of the slice, as TPU_PROCESS_BOUNDS or TPU_HOST_BOUNDS says; None if neither is set."""
    bounds = settings.TPU_PROCESS_BOUNDS.get() or settings.TPU_HOST_BOUNDS.get()
    return MeshShape.from_string(bounds).size if bounds else None


def num_local_processes() -> int:
    """Processes that are to run on this host: one for each chip, unless TPU_PROCESS_BOUNDS says otherwise.

    Raises RuntimeError if that is more than there are chips.
    """
    chips, processes = num_available_chips(), process_bounds_size()
    if processes is None:
        return chips
    hosts = num_tpu_workers()
    count = processes // hosts
    if not 1 <= count <= chips:
        raise RuntimeError(f"TPU_PROCESS_BOUNDS has {processes} processes on {hosts} hosts, but this host has {chips} chips")
    return count


def num_expected_global_devices() -> int:
    """TPU devices that the slice has in all. Raises RuntimeError where nothing describes the slice."""
    bounds = next(possible_bounds(), None)
    if bounds is None:
        raise RuntimeError("the size of this TPU slice is unknown: set TPU_ACCELERATOR_TYPE, to a text such as v4-8")
    return bounds.by_chip().size * num_logical_cores_per_chip()
