"""Every mesh of so many devices, and how good a plan with it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xla_debug.plan.schema import Candidate, Plan, bound, fits


def meshes(devices: int, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """All ways to divide so many devices among axes of these names."""
    if len(names) == 1:
        yield {names[0]: devices}
        return
    for size in range(1, devices + 1):
        if devices % size == 0:
            for rest in meshes(devices // size, names[1:]):
                yield {names[0]: size, **rest}


def candidate(mesh: Mapping[str, int], plan: Plan) -> Candidate:
    """A plan with a mesh, in short."""
    step = plan.step
    errors = [plan.error, *[program.error for program in plan.programs]]
    error = next((error for error in errors if error is not None), None)
    return Candidate(dict(mesh), fits(plan), plan.peak, step.ms if step else None, bound(step) if step else "", error)


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The best first: those that fit by their time, then the others by what they lack."""
    return sorted(candidates, key=lambda item: (item.error is not None, not item.fits, item.ms or 0.0 if item.fits else item.peak))
