"""File formats and interfaces of torch: torch.save, `xm.save`, `xser`, and planners of torch.distributed.checkpoint."""
