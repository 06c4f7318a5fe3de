"""Automatic mixed precision: autocast, loss scaling, optimizers that skip an update without a read."""
