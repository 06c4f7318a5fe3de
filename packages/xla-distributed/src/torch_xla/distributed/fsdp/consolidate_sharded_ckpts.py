"""`python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts`: put sharded checkpoints together."""

from xla_distributed.fsdp.consolidation import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
