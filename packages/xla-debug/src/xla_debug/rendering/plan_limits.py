"""Limits for a plan, as CI gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from xla_debug.plan.schema import Plan, fits
from xla_debug.rendering.formatting import duration, size

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_BYTES = {unit.lower(): 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
_BYTES |= {unit.lower(): 1000**power for power, unit in enumerate(("KB", "MB", "GB", "TB"), 1)}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


def parse_bytes(text: str) -> int:
    """Bytes from `30GiB` or `500 MB`. Raises ValueError for other texts."""
    return int(_quantity(text, _BYTES, "--memory", "30GiB"))


def parse_seconds(text: str) -> float:
    """Seconds from `2s` or `150ms`. Raises ValueError for other texts."""
    return _quantity(text, _SECONDS, "--step-time", "2s")


def _quantity(text: str, units: Mapping[str, float], option: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{option} is {text!r}, must be a number with one of {', '.join(units)}, such as {example}")
    return float(match[1]) * units[match[2].lower()]


def broken(plan: Plan, must_fit: bool, most_bytes: int | None, most_seconds: float | None) -> list[str]:
    """What a plan breaks: errors always, memory and time where there are limits."""
    problems = [f"{program.name} does not compile: {program.error}" for program in plan.programs if program.error is not None]
    if plan.error is not None:
        problems.append(plan.error)
    if must_fit and not problems and not fits(plan):
        problems.append(f"it does not fit: a device needs {size(plan.peak)} and has {size(plan.memory)}")
    if most_bytes is not None and plan.peak > most_bytes:
        problems.append(f"a device needs {size(plan.peak)}, more than {size(most_bytes)}")
    step = plan.step
    if most_seconds is not None and step is not None and step.ms > 1000 * most_seconds:
        problems.append(f"a step is estimated to take {duration(step.ms)}, longer than {duration(1000 * most_seconds)}")
    return problems
