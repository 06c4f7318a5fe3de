"""Graphs as text, read back, drawn and saved."""
