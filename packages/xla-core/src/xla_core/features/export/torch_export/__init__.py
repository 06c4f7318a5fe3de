"""Programs of torch.export as StableHLO."""
