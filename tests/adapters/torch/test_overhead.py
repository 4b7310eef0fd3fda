"""Where the overhead is measured, blocks of steps go untraced and a post-mortem still knows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.adapters.torch.tape import Tape
from tracekit import recorder
from tracekit.adapters.torch import trace

pytestmark = pytest.mark.usefixtures("process_group")


def test_blocks_of_steps_have_no_spans_but_their_own(tape: Tape) -> None:
    rec = recorder.current()
    assert rec is not None
    rec.measures_overhead = True
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    batches = [torch.ones(4, 4)] * 110
    loader: Any = torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    handle = trace(ddp, optimizer=optimizer, loader=loader)
    for batch in loader:
        ddp(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert work is not None
        work.wait()
    handle.detach()
    spans = tape.spans()
    untraced = {span.step for span in spans if span.name == "untraced_step"}
    assert untraced == set(range(25, 75))
    inside = Counter(
        span.kind for span in spans if span.step in untraced and span.kind not in ("step", "gc")
    )
    assert not inside
    traced = [span for span in spans if span.step == 80]
    assert {"train_step", "data_wait", "forward", "backward", "all_reduce", "wait"} <= {
        span.name for span in traced
    }
    assert tape.open_spans() == []
    numbers = [span.seq or 0 for span in spans if span.op == "all_reduce" and span.name != "wait"]
    assert max(numbers) > 3 * len(untraced)  # numbers go on where nothing is recorded


def test_a_post_mortem_knows_the_call_that_hangs_in_an_untraced_step(tape: Tape) -> None:
    recorder.pause.on = True
    try:
        handle = trace(nn.Linear(1, 1))
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert work is not None
        assert tape.open_spans() == ["all_reduce"]
        work.wait()
        assert tape.open_spans() == []
        handle.detach()
    finally:
        recorder.pause.on = False
    assert [span for span in tape.spans() if span.kind == "comm"] == []


def test_what_a_call_costs_is_told_at_the_start(tape: Tape) -> None:
    trace(nn.Linear(1, 1)).detach()
    [cost] = tape.fact("cost")
    assert 0 < cost["call_ns"] < 1_000_000
    assert not tape.spans()
