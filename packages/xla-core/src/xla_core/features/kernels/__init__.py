"""Attention, grouped and quantized products that have hand-written kernels, as operations of torch."""
