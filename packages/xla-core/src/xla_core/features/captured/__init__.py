"""Captured steps: functions whose Python runs in the first calls only; later calls launch the program that these recorded."""
