"""Exports programs as StableHLO: pending operations, programs of torch.export with the folder of their weights, captured steps."""
