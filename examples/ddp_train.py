"""A small DDP training, recorded by one line.

torchrun --nproc-per-node 2 examples/ddp_train.py
tracekit analyze runs/ddp-train
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import tracekit
from tracekit.adapters.torch import trace


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    layers = nn.Sequential(
        nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 10)
    )
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    loss_of = nn.CrossEntropyLoss()

    tracekit.start(run="ddp-train")  # only to name the run; trace() starts recording by itself
    trace(model, optimizer=optimizer, loader=loader)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(model(inputs), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
        tracekit.event("loss", value=loss.item(), epoch=epoch)
        if dist.get_rank() == 0:
            torch.save(layers.state_dict(), os.devnull)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
