"""Backend `xla` of `torch.distributed`: process groups, functional collectives, groups of a mesh."""
