"""A training loop that waits for its batches: `slow_input.py torch | device`, by a DataLoader alone or wrapped in an MpDeviceLoader."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torch_xla
import torch_xla.distributed.parallel_loader as pl


class Slow(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        time.sleep(0.004)  # MISTAKE loader
        return torch.randn(16)


device = torch_xla.device()
net = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(Slow(), batch_size=8)
if sys.argv[1] == "device":
    loader = pl.MpDeviceLoader(loader, device)
for inputs in loader:
    optimizer.zero_grad()
    net(inputs.to(device)).square().mean().backward()
    optimizer.step()
    torch_xla.sync()
