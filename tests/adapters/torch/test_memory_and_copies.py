"""Memory once a step, and what goes to an accelerator."""

from __future__ import annotations

import logging
import os

import pytest

pytest.importorskip("torch")

import torch

from tests.adapters.torch.fake_device import FakeDevice
from tests.adapters.torch.small import network, traced_steps
from tests.adapters.torch.tape import Tape
from tracekit import recorder
from tracekit.adapters._patch import patched
from tracekit.adapters.torch import _loop, trace
from tracekit.adapters.torch._around import memory as _memory

# Memory


def test_memory_is_recorded_when_it_changes(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loop, "SELDOM_NS", 0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[torch.Tensor] = []
    traced_steps(model, optimizer, 3, lambda: kept.append(torch.ones(4 << 20)))
    events = tape.events("memory")
    assert [event.step for event in events] == [0, 1, 2]
    grown = (events[2].value or 0) - (events[0].value or 0)
    assert 20 << 20 < grown < 60 << 20


def test_memory_is_looked_at_ten_times_a_second_at_most(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_loop, "SELDOM_NS", 1 << 60)
    model = network()
    kept: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    traced_steps(model, optimizer, 5, lambda: kept.append(torch.ones(1 << 20)))
    assert len(tape.events("memory")) == 1


def test_where_memory_cannot_be_read_this_is_said_once(
    tape: Tape, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder._current, "_said", set())
    monkeypatch.setattr(_memory, "STATM", "/proc/none")
    with caplog.at_level(logging.WARNING, "tracekit"):
        for _ in range(2):
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            traced_steps(model, optimizer, 2, lambda: None)
    assert tape.events("memory") == []
    assert caplog.text.count("memory is not recorded") == 1


def test_two_handles_of_a_thread_share_what_is_asked_of_the_process(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = trace(network()), trace(model, optimizer)
    files = len(os.listdir("/proc/self/fd"))
    first.detach()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    second.detach()
    assert len(tape.events("loss")) == len(tape.events("memory")) == 1
    assert len(os.listdir("/proc/self/fd")) == files - 1


# Accelerators, through the seam


def test_a_copy_from_the_host_is_a_launch_and_a_transfer_of_the_device(
    tape: Tape, device: FakeDevice
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)
    x = torch.ones(3, 4)
    elsewhere = x.to("meta", non_blocking=True)
    assert elsewhere.device.type == "meta"
    elsewhere.to(torch.float64)  # no copy from the host
    assert x.to(torch.float64).dtype is torch.float64
    assert x.to("cpu") is x
    assert x.to(x) is x
    assert x.to(dtype=torch.float64).to(elsewhere).device.type == "meta"
    model(x).sum().backward()
    optimizer.step()
    device.time.now += 1_000_000
    optimizer.step()
    handle.detach()
    copies = [span for span in tape.spans() if span.name == "to_device"]
    assert [(s.kind, s.device) for s in copies if not s.device] == [("launch", False)] * 2
    on_device = [span for span in copies if span.device]
    assert [(s.kind, s.lane) for s in on_device] == [("transfer", "stream:fake:0:7")] * 2
    assert [span.attributes["bytes"] for span in on_device] == [48, 96]
    assert "to" not in vars(torch.Tensor)


def test_without_an_accelerator_copies_are_let_alone(tape: Tape) -> None:
    handle = trace(network())
    assert "Tensor.to" not in patched()
    handle.detach()


def test_a_device_tells_its_name_and_its_memory(
    tape: Tape, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_loop, "SELDOM_NS", 0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def grow() -> None:
        device.allocated += 1 << 19

    traced_steps(model, optimizer, 4, grow)
    assert tape.fact("device") == [{"device": "cpu", "name": "made up"}]
    events = tape.events("memory")
    assert [(event.step, event.value) for event in events] == [(0, 2 << 20), (2, 3 << 20)]
    assert events[0].attributes == {"peak": 3 << 20, "reserved": 4 << 20}


def test_a_captured_stream_is_not_touched_by_copies(tape: Tape, device: FakeDevice) -> None:
    handle = trace(network())
    device.captures = True
    torch.ones(3).to("meta")
    handle.detach()
    assert device.events == 0
