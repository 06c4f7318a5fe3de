"""Policies that say which submodules get a wrapper of their own."""

from xla_distributed.fsdp.policies import always_wrap_policy as always_wrap_policy
from xla_distributed.fsdp.policies import lambda_auto_wrap_policy as lambda_auto_wrap_policy
from xla_distributed.fsdp.policies import recursive_wrap as recursive_wrap
from xla_distributed.fsdp.policies import size_based_auto_wrap_policy as size_based_auto_wrap_policy
from xla_distributed.fsdp.policies import transformer_auto_wrap_policy as transformer_auto_wrap_policy

__all__ = [name for name in dir() if not name.startswith("__")]
