"""What a loader hands out: how it is set up, its sampler, the samples a rank takes in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tracekit import recorder
from tracekit.adapters.torch._facts.telling import tell
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import Loop

__all__ = ["Batches"]

_LOADER = {
    "batch_size": "batch_size",
    "num_workers": "workers",
    "pin_memory": "pin_memory",
    "prefetch_factor": "prefetch",
    "persistent_workers": "persistent",
    "drop_last": "drop_last",
}
_SAMPLER = {
    "epoch": "epoch",
    "num_replicas": "replicas",
    "rank": "rank",
    "shuffle": "shuffle",
    "seed": "seed",
    "drop_last": "drop_last",
    "num_samples": "samples",
    "replacement": "replacement",
}
_DEEPEST = 3


class Batches:
    """The facts of one loader, and the size of its batches."""

    def __init__(self, loader: Any, loop: Loop) -> None:
        self._loop = loop
        self._epoch: object = None
        self._updates = 0
        self._before = 0
        self.taken = 0
        self.size: int | None = None
        self._stop = loop.watch_updates(self._updated)
        self._tell(loader)

    @guarded("facts of the loader")
    def _tell(self, loader: Any) -> None:
        found = {"class": type(loader).__name__, **_read(loader, _LOADER)}
        context = getattr(loader, "multiprocessing_context", None)
        if context is not None:
            found["start_method"] = str(context.get_start_method())
        tell("loader", found)
        sampler = _sampler_of(loader)
        if sampler is not None:
            facts = {"class": type(sampler).__name__, **_read(sampler, _SAMPLER)}
            generator = getattr(sampler, "generator", None) or getattr(loader, "generator", None)
            if generator is not None:
                facts["generator_seed"] = generator.initial_seed()
            tell("sampler", facts)
            self._epoch = facts.get("epoch")
        self.size = _number(getattr(loader, "batch_size", None)) or _number(
            getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
        )

    @guarded("facts of the loader")
    def begins(self, loader: Any) -> None:
        """The loader is iterated over once more."""
        epoch = getattr(_sampler_of(loader), "epoch", None)
        if epoch is not None and epoch != self._epoch:
            self._epoch = epoch
            recorder.event("epoch", epoch)

    @guarded("batch size")
    def first(self, batch: Any) -> None:
        """The loader does not say how large its batches are; the first one shows it."""
        self.size = _length(batch, _DEEPEST) or 0

    @guarded("batch size")
    def _updated(self) -> None:
        """The second update shows how many batches a step takes."""
        self._updates += 1
        if self._updates == 2:
            self._stop()
            batches = max(self.taken - self._before, 1)
            if self.size and self.taken:
                tell("batch_size", self.size * batches)
        self._before = self.taken

    def stop(self) -> None:
        """Look no longer."""
        self._stop()


def _sampler_of(loader: Any) -> Any:
    """The sampler that shuffles: with a batch sampler of the user's it lies in that one."""
    of_batches = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return of_batches if of_batches is not None else getattr(loader, "sampler", None)


def _read(owner: Any, names: dict[str, str]) -> dict[str, Any]:
    found = {}
    for name, called in names.items():
        value = getattr(owner, name, None)
        if isinstance(value, (bool, int, float, str)):
            found[called] = value
    return found


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _length(batch: Any, depth: int) -> int | None:
    """The first dimension of the first tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else None
    if depth and isinstance(batch, Mapping):
        batch = batch.values()
    elif not depth or not isinstance(batch, (list, tuple)):
        return None
    lengths = (_length(part, depth - 1) for part in batch)
    return next((length for length in lengths if length), None)
