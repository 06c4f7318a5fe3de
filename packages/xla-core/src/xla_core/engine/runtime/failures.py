"""The reason why an execution failed: the runtime's text, and explanations that were registered."""

from __future__ import annotations

from collections.abc import Callable

# Returns a text to add to the runtime's, or None.
Explanation = Callable[[BaseException], str | None]
_explanations: list[Explanation] = []


def explain_failures(explanation: Explanation) -> Callable[[], None]:
    """Call `explanation` for each execution that fails, to add to the error's text; returns a function that removes it."""
    _explanations.append(explanation)
    return lambda: _explanations.remove(explanation)


def reason(error: BaseException) -> str:
    """The text of a runtime error with all explanations for it."""
    texts = [text for explanation in _explanations if (text := explanation(error))]
    return "\n".join([str(error), *texts])
