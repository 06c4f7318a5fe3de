"""What a captured function tells its user: errors that say why it cannot be captured or is no longer what it was, and warnings."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from xla_core.base.errors import CapturedStepChanged, CaptureError
from xla_core.features.captured.checks import Verify
from xla_core.features.captured.variants import MOST_VARIANTS, Variants


@dataclass(frozen=True, slots=True)
class Policy:
    """How to capture. name: of the function; fallback: keep recording what cannot be captured; verify: which calls to verify."""

    name: str
    fallback: bool
    verify: Verify


class Reports:
    """The errors and warnings of one function. refused: the first reason for which it is recorded at each call; None if there is none."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.refused: str | None = None

    def refuse(self, problem: str) -> bool:
        """Report that the function cannot be captured. Returns True with fallback, else raises CaptureError."""
        text = f"{self._policy.name} cannot be captured: {problem}"
        if not self._policy.fallback:
            raise CaptureError(f"{text}. With torch_xla.compile(capture=True, fallback=True) it is recorded at each call instead")
        self._record_always(text)
        return True

    def changed(self, problem: str) -> bool:
        """Report that calls since the last verified one may be wrong. Returns True with fallback, else raises CapturedStepChanged."""
        text = f"{self._policy.name} has changed since it was captured: {problem}"
        if not self._policy.fallback:
            raise CapturedStepChanged(f"{text}. With torch_xla.compile(capture=True, verify_every=1) each call is compared")
        self._record_always(text)
        return True

    def has_graph(self) -> None:
        """Warn that the function returns a tensor with a graph."""
        self._record_always(
            f"{self._policy.name} is not captured: it returns a tensor with the graph of its gradient, through which only recorded "
            "operations can go backward. Capture the whole step, backward included, or call it under torch.no_grad()"
        )

    def kinds(self, variants: Variants, calls: int) -> None:
        """Warn if calls have arguments of another kind each time."""
        if variants.unserved == 2 * MOST_VARIANTS:
            self._warn(
                f"{self._policy.name} was recorded at each of {calls} calls, because {variants.varying()}. A program is captured for each "
                "kind of arguments, and serves calls with arguments of that kind"
            )

    def disturbed(self, device: Any, calls: int) -> None:
        """Warn that other threads used the device in each of so many recorded calls."""
        self._warn(
            f"{self._policy.name} is not captured yet: other threads used {device} in each of {calls} calls that were recorded for it. "
            "Let them "
            "rest during its first calls, and start none inside"
        )

    def _record_always(self, text: str) -> None:
        if self.refused is None:
            self.refused = text
            self._warn(f"{text}. It is recorded at each call")

    def _warn(self, text: str) -> None:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
