"""`python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts`: put sharded checkpoints together."""

from __future__ import annotations

from xla_distributed.fsdp.consolidation import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
