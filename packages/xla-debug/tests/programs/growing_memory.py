"""A training loop that keeps tensors: `growing_memory.py list | attribute | records`."""

import sys

import torch
from torch import nn

import torch_xla

STEPS = 40


class History:
    def __init__(self):
        self.outputs = []

    def note(self, output):
        self.outputs.append(output)  # MISTAKE attribute


device = torch_xla.device()
net = nn.Linear(16, 64).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
inputs = torch.randn(8, 16).to(device)
history = History()
outputs, records = [], []
for step in range(STEPS):
    optimizer.zero_grad()
    output = net(inputs)  # MADE
    output.square().mean().backward()
    optimizer.step()
    match sys.argv[1]:
        case "list":
            outputs.append(output.detach())  # MISTAKE list
        case "attribute":
            history.note(output.detach())
        case "records":
            records += [{"step": step, "output": output.detach()}]  # MISTAKE records
    torch_xla.sync()
