"""A training for `xla-debug plan`: argument 1 is a file that is written if the script goes on after its steps, 2 what else it does."""

import os
import signal
import sys
import threading
from pathlib import Path

import torch

import torch_xla

after, kind = Path(sys.argv[1]), sys.argv[2]
if kind == "mesh":
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    xr.use_spmd()
    count = xr.global_runtime_device_count()
    mesh = xs.Mesh(range(count), (2, count // 2), ("data", "fsdp"))
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).to("xla")
if kind == "mesh":
    for layer in (model[0], model[2]):
        xs.mark_sharding(layer.weight, mesh, ("fsdp", None))
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    if kind == "raises" and step == 1:
        raise ValueError("the script's own mistake")
    if kind == "waits" and step == 1:
        after.with_suffix(".waiting").touch()
        threading.Event().wait()
    if kind == "crashes" and step == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    x = torch.ones(64, 256).to("xla")
    if kind == "mesh":
        xs.mark_sharding(x, mesh, ("data", None))
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch_xla.sync()
after.write_text("the script went on")
