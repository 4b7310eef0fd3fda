"""What the tests of the adapters share: a tape that records, a group of one rank."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from tests.adapters.torch.fake_device import FakeDevice, Time
from tests.adapters.torch.tape import Tape, recording
from tracekit.adapters._patch import patched
from tracekit.adapters.torch import _device, _trace
from tracekit.adapters.torch._guard import failures


@pytest.fixture
def tape() -> Iterator[Tape]:
    """What is recorded in the test; nothing of ours may fail in it or stay patched after it."""
    with recording() as tape:
        yield tape
    gc.collect()
    assert failures == {}
    assert patched() == []


@pytest.fixture
def process_group() -> Iterator[None]:
    """A default group of this process alone."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """An accelerator on which every model lives."""
    time = Time()
    device = FakeDevice(time)
    monkeypatch.setattr(_device, "clock", time)
    monkeypatch.setattr(_trace, "accelerator_of", lambda model: device)
    return device
