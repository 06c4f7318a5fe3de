"""The reason why an execution failed: what the runtime says, and what others know about it."""

from __future__ import annotations

from collections.abc import Callable

# Gives what is known beyond the runtime's own words, or None.
Explanation = Callable[[BaseException], str | None]
_explanations: list[Explanation] = []


def explain_failures(explanation: Explanation) -> Callable[[], None]:
    """Ask `explanation` about each execution that fails, for the error's text; returns a function that ends it."""
    _explanations.append(explanation)
    return lambda: _explanations.remove(explanation)


def reason(error: BaseException) -> str:
    """The text of a runtime error with all explanations for it."""
    known = [text for explanation in _explanations if (text := explanation(error))]
    return "\n".join([str(error), *known])
