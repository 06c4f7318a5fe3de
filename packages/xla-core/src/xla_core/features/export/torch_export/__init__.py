"""Exports programs of torch.export as StableHLO."""
