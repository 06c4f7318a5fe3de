"""Optimizers update lists of xla parameters as a whole (`foreach`), not one parameter after the other, unless told otherwise.

One recorded operation for each list instead of a dozen for each parameter is the largest saving in recording there is.
"""

from __future__ import annotations

from xla_core import _compat
from xla_core.frontend.tensor import XLATensor


def register() -> None:
    """Count xla tensors among the types that torch trusts with its list operations.

    `torch.optim`, `clip_grad_norm_` and `swa_utils` ask these lists; the device is trusted already, as torch's private backend.
    """
    for supported in _compat.foreach_types():
        if XLATensor not in supported:
            supported.append(XLATensor)
    _compat.radam_in_lists(lambda parameter: parameter.device.type == "xla")  # another branch would be another program
