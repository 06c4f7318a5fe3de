"""TPU hosts, as far as their environment tells: nothing here starts a client or asks the network."""

from __future__ import annotations

from pathlib import Path

from xla_core.compat.env_vars import (
    ACCELERATOR_TYPE,
    CLOUD_TPU_TASK_ID,
    TPU_ACCELERATOR_TYPE,
    TPU_PROCESS_ADDRESSES,
    TPU_PROCESS_BOUNDS,
    TPU_VISIBLE_CHIPS,
    TPU_WORKER_HOSTNAMES,
    TPU_WORKER_ID,
    WORKER_ID,
)
from xla_core.compat.utils import getenv_as

_GOOGLE = "0x1ae0"


def num_available_chips() -> int:
    """TPU chips that this host has, from its PCI devices."""
    chips = 0
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        text = vendor.read_text().strip()
        kind = vendor.with_name("device").read_text().strip()
        chips += text == _GOOGLE and kind in _CHIP_IDS
    return chips


# PCI device ids of TPU generations, and how many devices (cores) each chip shows.
_CORES = {
    "0x0027": 2,  # v2 and v3
    "0x005e": 1,  # v4
    "0x0062": 1,  # v5p
    "0x0063": 1,  # v5e
    "0x006f": 1,  # v6e
}
_CHIP_IDS = frozenset(_CORES)


def num_available_devices() -> int:
    """TPU devices that this host's processes may use: 0 off TPU."""
    chips = num_available_chips()
    if not chips:
        return 0
    return visible_chips(chips) * _cores_per_chip()


def visible_chips(present: int) -> int:
    """The number of chips that this process was given."""
    chosen = getenv_as(TPU_VISIBLE_CHIPS, str)
    return len(chosen.split(",")) if chosen else present


def _cores_per_chip() -> int:
    for device in Path("/sys/bus/pci/devices").glob("*/device"):
        cores = _CORES.get(device.read_text().strip())
        if cores is not None:
            return cores
    return 1


_DESCRIBING = (
    ACCELERATOR_TYPE,
    TPU_ACCELERATOR_TYPE,
    TPU_PROCESS_BOUNDS,
    TPU_PROCESS_ADDRESSES,
    TPU_WORKER_HOSTNAMES,
    TPU_WORKER_ID,
    WORKER_ID,
)


def get_tpu_env() -> dict[str, str]:
    """The environment of this host's slice; empty off TPU."""
    found = {name: getenv_as(name, str) for name in _DESCRIBING}
    return {name: text for name, text in found.items() if text}


def worker_hostnames() -> list[str]:
    """Hosts of the slice, host 0 first; empty where the environment does not say."""
    listed = getenv_as(TPU_WORKER_HOSTNAMES, str)
    if listed:
        return [host.strip() for host in listed.split(",")]
    addresses = getenv_as(TPU_PROCESS_ADDRESSES, str)
    hosts = [address.strip().rpartition(":")[0] for address in addresses.split(",")] if addresses else []
    return list(dict.fromkeys(hosts))


def task_id() -> int:
    """Number of this process in the slice."""
    return int(getenv_as(CLOUD_TPU_TASK_ID, int) or 0)


def worker_id() -> int:
    """Number of this host in the slice."""
    number = getenv_as(TPU_WORKER_ID, int)
    return int((getenv_as(WORKER_ID, int) if number is None else number) or 0)


def version() -> int:
    """The TPU generation, such as 4. Raises RuntimeError off TPU."""
    kind = getenv_as(TPU_ACCELERATOR_TYPE, str) or getenv_as(ACCELERATOR_TYPE, str) or ""
    digits = "".join(letter for letter in kind.partition("-")[0] if letter.isdigit())
    if not digits:
        raise RuntimeError(f"this host's TPU generation is unknown: {ACCELERATOR_TYPE} is {kind!r}, expected a text such as v4-8")
    return int(digits)
