"""Updates of optimizers."""
