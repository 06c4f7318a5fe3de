"""Choose who writes, of several replicas."""

from __future__ import annotations

import torch_xla.core.xla_model as xm


def writes(master_only: bool, global_master: bool) -> bool:
    """Whether this replica does: each host's master, the job's only if `global_master`, all unless `master_only`."""
    return not master_only or bool(xm.is_master_ordinal(local=not global_master))
