"""Helpers of the torch_xla API that touch neither recording nor devices: queues, nestings, rates, names of variables."""
