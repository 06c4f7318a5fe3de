"""Functions that are recorded once."""

from xla_core.features.control_flow.pure import PureModule, assume_pure, assume_pure_torch, j2t_autograd

__all__ = ["PureModule", "assume_pure", "assume_pure_torch", "j2t_autograd"]
