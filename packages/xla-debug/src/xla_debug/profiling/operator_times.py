"""Sum up the device time of a profile by operator, module and line."""

from __future__ import annotations

import os
from dataclasses import dataclass

from xla_debug.profiling.profile_file import kernels


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The device time of one operator that one line recorded in one module.

    operator: as recorded, `aten.mm`; a kernel that no operator made has the name of its kind, such as `copy`. module: the path of the
    scopes it was recorded in, `encoder.0`, empty where none are known. line: the user's, `train.py:17`. ms: on all devices, over the
    whole profile. count: kernels that ran. fused: other operators whose work is in the same kernels.
    """

    operator: str
    module: str
    line: str | None
    ms: float
    count: int
    fused: tuple[str, ...] = ()


def operator_times(log_dir: str | os.PathLike[str]) -> list[OperatorTime]:
    """Sum up the device time of each operator in a profile, the longest first.

    log_dir: the folder that `start_trace` or `trace` wrote to (its newest profile is read), or a `.xplane.pb` file. A kernel into which
    several operators are fused counts for the costliest of them. Raises ValueError if there is no readable profile.
    """
    ns: dict[tuple[str, str, str | None], float] = {}
    counts: dict[tuple[str, str, str | None], int] = {}
    fused: dict[tuple[str, str, str | None], dict[str, None]] = {}
    for kernel in kernels(log_dir):
        origin = kernel.origin
        key = origin.operator, origin.module, origin.line
        ns[key] = ns.get(key, 0.0) + kernel.own_ns
        counts[key] = counts.get(key, 0) + 1
        fused.setdefault(key, {}).update(dict.fromkeys(origin.fused))
    times = [OperatorTime(*key, total * 1e-6, counts[key], tuple(fused[key])) for key, total in ns.items()]
    return sorted(times, key=lambda operator: -operator.ms)
