"""Devices, transfers, syncs and executions."""
