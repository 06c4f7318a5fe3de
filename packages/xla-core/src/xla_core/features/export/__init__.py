"""Programs as StableHLO: of pending operations, of torch.export, and the folder that holds one with its weights."""
