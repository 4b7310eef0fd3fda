"""Device times through the seam, with a device that is made up: no accelerator is needed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.adapters.torch.fake_device import LAG_NS, FakeDevice, Time
from tests.adapters.torch.tape import Tape
from tracekit import recorder
from tracekit.adapters.torch import _device, _trace, trace
from tracekit.adapters.torch._comm import calls as _calls
from tracekit.adapters.torch._device import DeviceClock, DevicePhase, accelerator_of


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(_device, "clock", time)
    return time


def device_clock(time: Time) -> tuple[FakeDevice, DeviceClock]:
    device, rec = FakeDevice(time), recorder.current()
    assert rec is not None
    return device, DeviceClock(device, rec)


def test_marks_become_host_times_within_their_error(tape: Tape, time: Time) -> None:
    _, times = device_clock(time)
    start = times.mark()
    started = time.now + LAG_NS
    time.now += 2_000_000
    times.span(DevicePhase("forward", "forward"), start, times.mark())
    time.now += 2 * LAG_NS
    times.poll()
    [span] = tape.spans()
    error = span.attributes["error_ns"]
    assert 0 < error < 10_000
    assert abs(span.start - started) <= error
    assert abs(span.duration - 2_000_000) <= 2_000
    assert (span.lane, span.device) == ("stream:fake:0:7", True)
    assert span.attributes["device"] == "fake:0"


def test_what_the_device_has_not_passed_waits(tape: Tape, time: Time) -> None:
    device, times = device_clock(time)
    phase = DevicePhase("forward", "forward")
    device.stuck = True
    times.span(phase, times.mark(), times.mark())
    device.stuck = False
    times.span(phase, times.mark(), times.mark())
    time.now += 2 * LAG_NS
    times.poll()
    assert tape.spans() == []


def test_events_are_used_again(tape: Tape, time: Time) -> None:
    device, times = device_clock(time)
    for _ in range(20):
        times.span(DevicePhase("forward", "forward"), times.mark(), times.mark())
        time.now += 2 * LAG_NS
        times.poll()
    assert len(tape.spans()) == 20
    assert device.events <= 2 + 1


def test_nothing_is_touched_while_a_graph_is_captured(tape: Tape, time: Time) -> None:
    device, times = device_clock(time)
    device.captures = True
    assert times.mark() is None
    times.span(DevicePhase("forward", "forward"), None, None)
    times.poll()
    assert device.events == 0


def test_a_device_that_never_answers_costs_old_spans_only(
    tape: Tape, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_device, "MOST_PENDING", 3)
    device, times = device_clock(time)
    device.stuck = True
    for _ in range(10):
        times.span(DevicePhase("forward", "forward"), times.mark(), times.mark())
        times.poll()
    assert len(times._pending) == 3


def test_a_model_on_the_cpu_has_no_accelerator() -> None:
    assert accelerator_of(nn.Linear(1, 1)) is None
    assert accelerator_of(nn.Linear(1, 1, device="meta")) is None
    assert accelerator_of(nn.Identity()) is None


@pytest.mark.parametrize("buckets", [False, True])
def test_phases_on_a_device_are_launches_and_device_spans(
    tape: Tape, time: Time, monkeypatch: pytest.MonkeyPatch, buckets: bool
) -> None:
    monkeypatch.setattr(_trace, "accelerator_of", lambda model: FakeDevice(time))
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer, buckets=buckets)
    for _ in range(5):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        time.now += 2 * LAG_NS
    optimizer.step()
    handle.detach()
    dist.destroy_process_group()
    del model
    spans = tape.spans()
    host = {(s.name, s.kind) for s in spans if not s.device and s.kind != "gc"}
    launches = {("forward", "launch"), ("backward", "launch"), ("optimizer_step", "launch")}
    assert host == launches | {("train_step", "step")}
    device = [span for span in spans if span.device]
    assert {(span.name, span.kind) for span in device} == {
        ("forward", "forward"),
        ("broadcast", "comm"),
        ("backward", "backward"),
        ("all_reduce", "comm"),
        ("optimizer_step", "optimizer"),
    }
    reductions = [span for span in device if span.op == "all_reduce"]
    numbers = [span.seq for span in reductions]
    assert numbers == sorted({number for number in numbers if number})
    assert len(numbers) == 5
    assert {span.step for span in reductions} == {0, 1, 2, 3, 4}
    steps = {span.step: span for span in spans if span.kind == "step"}
    assert all(span.parent == steps[span.step].id for span in device)
    if buckets:
        assert {span.lane[:6] for span in reductions} == {"group:"}
    else:
        assert {span.lane for span in reductions} == {"stream:fake:0:7"}
        for span in reductions:
            assert span.attributes.get("launch_ns", span.start) <= span.end


@pytest.mark.parametrize("blocking", [False, True])
def test_a_collective_on_a_device_is_timed_on_its_stream(
    tape: Tape, time: Time, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    store = torch._C._distributed_c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    device, times = device_clock(time)
    device.name = "meta"
    monkeypatch.setattr(_calls, "device_clock_of", lambda of: times if times.serves(of) else None)
    calls = _calls.calls_of(dist.group.WORLD)
    call = calls.begin("all_reduce", torch.empty(6, device="meta"), 24, blocking)
    time.now += 5_000_000
    call.wait_begins()
    time.now += 1_000_000
    call.waited()
    call.done()  # a second end changes nothing
    dist.destroy_process_group()
    time.now += 2 * LAG_NS
    times.poll()
    spans = {span.name: span for span in tape.spans()}
    assert set(spans) == ({"all_reduce"} if blocking else {"all_reduce", "wait"})
    reduce = spans["all_reduce"]
    assert (reduce.device, reduce.nbytes, reduce.dtype) == (True, 24, "float32")
    assert reduce.lane == ("stream:meta:7" if blocking else f"group:{reduce.group}")
    assert reduce.duration == pytest.approx(6_000_000, abs=20_000)
    if not blocking:
        wait = spans["wait"]
        assert (wait.lane, wait.seq, wait.op) == ("stream:meta:7", reduce.seq, "all_reduce")
        assert wait.duration == pytest.approx(1_000_000, abs=20_000)
