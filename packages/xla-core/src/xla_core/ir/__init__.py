"""Recorded operations: values, tapes, signatures, and the graphs cut out of tapes. Knows neither torch operators nor devices."""
