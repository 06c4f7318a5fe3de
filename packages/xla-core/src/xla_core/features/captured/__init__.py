"""Captured steps: functions whose Python runs in some calls only; other calls launch the program that these recorded.

*What is read.* While a call is recorded, `reads.py` follows its Python: attributes that it looks up on objects (`watching.py`),
variables, and attributes of classes and modules by the names in the code that runs (`lookups.py`). Each is a place (`places.py`) with the
value that it had before the call. `tape.py` notes what operations touch on the device, `optimizers.py` follows hyperparameters and step
counts.

*What is guarded.* The places that were read, the dicts of modules, hooks of every kind (`hooks.py`): `guards.py` compares them with what
they held. Arguments and the caller's modes choose a variant (`variants.py`), which has a program for each state of Python that recurs. If
two recorded calls found other numbers or tensors at a place, its values become arguments (`promotion.py`): numbers are traced
(`following.py`, `numbers_for_torch.py`), so that the program takes them as inputs, and comparisons of them are conditions.

*What is replayed.* `recording.py` describes a call: where its buffers come from, which storages, gradients and Python places
(`writes.py`) got what, and what it returned (`results.py`). Two calls without a `differences.py` are a program; `plan.py` prepares it,
`launch.py` runs it and puts results where the recorded ones went.

*What is verified.* `checks.py` says when a call is recorded again instead of launched, and compared with what its program would have
done: after a capture, within a budget, and where an accelerator is what the step waits for. `function.py` holds all of it together.
"""
