"""A training script without mistakes: fixed shapes, numbers that are only values, a read now and then, one of them late."""

import torch
from torch import nn

import torch_xla

device = torch_xla.device()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 64)
batches = [(torch.randn(128, 64).to(device), torch.randint(10, (128,)).to(device)) for _ in range(8)]
total = torch.zeros((), device=device)
for step in range(64):
    optimizer.zero_grad()
    inputs, labels = batches[step % 8]
    loss = nn.functional.cross_entropy(net(inputs), labels)
    loss.backward()
    optimizer.step()
    schedule.step()
    total += loss.detach()
    torch_xla.sync()
    if step % 16 == 15:
        print(total.item() / 16)
        total.zero_()
