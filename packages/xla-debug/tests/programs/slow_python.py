"""A training loop that spends its time in Python code of its own: `slow_python.py sleep | words`."""

import sys
import time

import torch
from torch import nn

import torch_xla

TEXT = "the quick brown fox jumps over the lazy dog " * 12_000


def frequent_words():
    counts = {}
    for word in TEXT.split():
        counts[word] = counts.get(word, 0) + len(word) % 7  # MISTAKE words
    return counts


device = torch_xla.device()
net = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
inputs = torch.randn(8, 16).to(device)
for _ in range(40):
    optimizer.zero_grad()
    net(inputs).square().mean().backward()
    optimizer.step()
    torch_xla.sync()
    if sys.argv[1] == "sleep":
        time.sleep(0.02)  # MISTAKE sleep
    else:
        frequent_words()
