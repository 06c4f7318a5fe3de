"""Hosts of TPUs: their chips, their slices, and how processes share them."""
