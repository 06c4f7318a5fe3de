"""Metrics, profiles and analysis."""
