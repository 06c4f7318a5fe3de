"""Ask what the platform cannot take (ops/limits.py): once for each signature, and for views of another dtype."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import tree_leaves
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.graph.signature import Signature
from xla_core.engine.runtime.client import placement_of
from xla_core.engine.runtime.source_location import user_line
from xla_core.engine.tensor.schema import Handler
from xla_core.ops.limits import LIMITS, Instead, Limit, limit_of


def platform_of(recorder: Recorder) -> str:
    """What is recorded there is compiled for this platform."""
    return placement_of(recorder).target.platform


def needs_host(signature: Signature, recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call runs on the host because the platform cannot take it. Raises UnsupportedOperationError for one that is refused."""
    platform = platform_of(recorder)
    if platform not in LIMITS:
        return False
    dtypes = {item.dtype for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)}
    limit = _limit(platform, signature, dtypes)
    if limit is None or limit.instead is Instead.ON_HOST:
        return limit is not None
    raise _refusal(signature.name, limit)


def holds_for(platform: str, signature: Signature, operands: Collection[Aval]) -> bool:
    """Whether a signature, with these operands, is of a call that a limit of the platform is about."""
    return _limit(platform, signature, {aval.dtype for aval in operands}) is not None


def with_check_of_dtype(name: str, handler: Handler) -> Handler:
    """The handler of a view of another dtype, which is not recorded, and refuses what a signature with this result would."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = handler(args, kwargs)
        limit = limit_of(platform_of(result._storage.value.recorder), "", (), (result.dtype,))
        if limit is not None:
            raise _refusal(name, limit)
        return result

    return run


def _limit(platform: str, signature: Signature, operands: set[torch.dtype]) -> Limit | None:
    results = {aval.dtype for aval in (*signature.inferred, *signature.outs) if aval is not None}
    return limit_of(platform, signature.target, operands | signature.named_dtypes(), results)


def _refusal(name: str, limit: Limit) -> UnsupportedOperationError:
    """Not a TypeError, which Python's operators take for "ask the other operand"."""
    return UnsupportedOperationError(f"{name} at {user_line() or 'an unknown line'}: {limit.reason}; {limit.advice}")
