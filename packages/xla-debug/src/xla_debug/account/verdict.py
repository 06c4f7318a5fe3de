"""The verdict: what a run is bound by."""

from __future__ import annotations

from collections.abc import Mapping

from xla_debug.account.schema import Phase, Verdict

_BUSY = 0.8
"""Share of the time that the device must be at work for the run to be its."""

_VERDICTS: Mapping[Phase, Verdict] = {
    Phase.TRACING: Verdict.TRACING,
    Phase.COMPILE: Verdict.COMPILE,
    Phase.TRANSFER: Verdict.TRANSFER,
    Phase.WAITING: Verdict.DEVICE,
    Phase.FALLBACK: Verdict.FALLBACK,
    Phase.LOADER: Verdict.LOADER,
    Phase.PYTHON: Verdict.PYTHON,
}


def shares(phases_ms: Mapping[str, float]) -> dict[Phase, float]:
    """Each phase's part of the whole; look-up counts as tracing, whose work it ends."""
    total = sum(phases_ms.values())
    found = {phase: phases_ms.get(phase.value, 0.0) / total if total else 0.0 for phase in _VERDICTS}
    if total:
        found[Phase.TRACING] += phases_ms.get(Phase.LOOKUP.value, 0.0) / total
    return found


def verdict_of(phases_ms: Mapping[str, float], device_ms: float) -> Verdict:
    """The device's if it was at work nearly all the time, else that of the largest share of the host's time."""
    total = sum(phases_ms.values())
    if not total:
        return Verdict.NOTHING
    if device_ms >= _BUSY * total:
        return Verdict.DEVICE
    found = shares(phases_ms)
    return _VERDICTS[max(found, key=found.__getitem__)]
