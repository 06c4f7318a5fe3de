"""A training script with six mistakes, each marked at the end of its line."""

import time
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torch_xla

warnings.simplefilter("ignore")  # the CPU fallback says itself that it is slow

STEPS = 24


class Slow(Dataset):
    def __len__(self):
        return STEPS * 8

    def __getitem__(self, index):
        time.sleep(0.005)  # MISTAKE loader
        return torch.randn(16), index % 4


def sequence(step):
    return torch.ones(8, 4 + step)


device = torch_xla.device()
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
for step, (inputs, labels) in enumerate(DataLoader(Slow(), batch_size=8)):
    inputs, labels = inputs.to(device), labels.to(device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss)  # MISTAKE memory
    torch_xla.sync()

    padded = sequence(step).to(device)
    mean = padded.mean(1)  # MISTAKE shapes
    torch_xla.sync()

    power = mean**step  # MISTAKE numbers
    torch_xla.sync()

    if loss.sum().item() > 1e6:  # MISTAKE reads
        break

    matrix = inputs[:, :8].t() @ inputs[:, :8]
    factors = torch.linalg.ldl_factor(matrix + matrix.t())  # MISTAKE fallback
    torch_xla.sync()
