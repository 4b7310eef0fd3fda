"""A training script of the shape of PyTorch's DDP tutorial; it knows nothing of tracekit.

torchrun --nproc-per-node 2 tutorial.py 3 1
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class MyTrainDataset(Dataset[Any]):
    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.size = size
        self.data = [
            (torch.rand(20, generator=generator), torch.rand(1, generator=generator))
            for _ in range(size)
        ]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


def ddp_setup() -> None:
    init_process_group(backend="gloo")


class Trainer:
    def __init__(
        self,
        model: torch.nn.Module,
        train_data: DataLoader[Any],
        test_data: DataLoader[Any],
        optimizer: torch.optim.Optimizer,
        save_every: int,
        snapshot_path: str,
    ) -> None:
        self.global_rank = int(os.environ["RANK"])
        self.train_data = train_data
        self.test_data = test_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        self.model = DDP(model)

    def _run_batch(self, source: torch.Tensor, targets: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = F.mse_loss(output, targets)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch: int) -> None:
        b_sz = len(next(iter(self.train_data))[0])
        print(f"[{self.global_rank}] Epoch {epoch} | Batchsize: {b_sz}", flush=True)
        self.train_data.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for source, targets in self.train_data:
            self._run_batch(source, targets)

    def _save_snapshot(self, epoch: int) -> None:
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}
        torch.save(snapshot, self.snapshot_path)
        print(f"Epoch {epoch} | Training snapshot saved at {self.snapshot_path}", flush=True)

    def _test(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for source, targets in self.test_data:
                F.mse_loss(self.model.module(source), targets)
        self.model.train()

    def train(self, max_epochs: int) -> None:
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            self._test()
            if self.global_rank == 0 and epoch % self.save_every == 0:
                self._save_snapshot(epoch)


def load_train_objs() -> tuple[Dataset[Any], torch.nn.Module, torch.optim.Optimizer]:
    train_set = MyTrainDataset(256)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 40), torch.nn.BatchNorm1d(40), torch.nn.ReLU(), torch.nn.Linear(40, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return train_set, model, optimizer


def prepare_dataloader(
    dataset: Dataset[Any], batch_size: int, workers: int, method: str | None
) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=False,
        sampler=DistributedSampler(dataset),
        num_workers=workers,
        multiprocessing_context=method if workers else None,
    )


def main(args: argparse.Namespace) -> None:
    ddp_setup()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset, model, optimizer = load_train_objs()
    train_data = prepare_dataloader(dataset, args.batch_size, args.workers, args.method)
    test_data = DataLoader(MyTrainDataset(64), batch_size=32)
    trainer = Trainer(model, train_data, test_data, optimizer, args.save_every, args.snapshot)
    trainer.train(args.total_epochs)
    if args.fail:
        trainer.model(torch.rand(4, 21))
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int, help="Total epochs to train the model")
    parser.add_argument("save_every", type=int, help="How often to save a snapshot")
    parser.add_argument("--batch_size", default=32, type=int, help="Input batch size on each rank")
    parser.add_argument("--snapshot", default=os.devnull, help="Where the snapshot goes")
    parser.add_argument("--workers", default=0, type=int, help="Processes of the loader")
    parser.add_argument("--method", default=None, help="How they are started: fork or spawn")
    parser.add_argument("--fail", action="store_true", help="Fail in the last forward")
    main(parser.parse_args())
