"""Recorded operations: values, pending graphs, signatures, and the graphs cut out of them. Knows neither torch operators nor devices."""
