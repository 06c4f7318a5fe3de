"""Find the bottleneck of a run: the device, or the phase that takes the largest share of the host's time."""

from __future__ import annotations

from collections.abc import Mapping

from xla_debug.run_report.schema import Bottleneck, Phase

_BUSY = 0.8
"""Share of the time with the device at work, from which a run is device-bound."""

_BOTTLENECKS: Mapping[Phase, Bottleneck] = {
    Phase.TRACING: Bottleneck.TRACING,
    Phase.COMPILE: Bottleneck.COMPILE,
    Phase.TRANSFER: Bottleneck.TRANSFER,
    Phase.WAITING: Bottleneck.DEVICE,
    Phase.FALLBACK: Bottleneck.FALLBACK,
    Phase.LOADER: Bottleneck.LOADER,
    Phase.PYTHON: Bottleneck.PYTHON,
}


def shares(phases_ms: Mapping[str, float]) -> dict[Phase, float]:
    """The share of each phase in the total time; look-up counts as tracing, which it ends."""
    total = sum(phases_ms.values())
    phase_shares = {phase: phases_ms.get(phase.value, 0.0) / total if total else 0.0 for phase in _BOTTLENECKS}
    if total:
        phase_shares[Phase.TRACING] += phases_ms.get(Phase.LOOKUP.value, 0.0) / total
    return phase_shares


def bottleneck_of(phases_ms: Mapping[str, float], device_ms: float) -> Bottleneck:
    """`DEVICE` if the device was at work nearly all the time, else the phase with the largest share of the host's time."""
    total = sum(phases_ms.values())
    if not total:
        return Bottleneck.NOTHING
    if device_ms >= _BUSY * total:
        return Bottleneck.DEVICE
    phase_shares = shares(phases_ms)
    return _BOTTLENECKS[max(phase_shares, key=phase_shares.__getitem__)]
