"""usage: python run.py <name> … runs the cases of `<name>_cases.py`, in this order, and prints their reports as JSON."""

from __future__ import annotations

import importlib
import json
import sys

import harness
import torch_xla.runtime as xr

if not {"marking", "dtensor", "order"} & set(sys.argv):  # these begin outside of SPMD mode
    xr.use_spmd()
for name in sys.argv[1:]:
    importlib.import_module(f"{name}_cases")
print(json.dumps(harness.run_all()))
