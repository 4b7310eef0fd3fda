"""Every call of torch.distributed is one span, with the same number on all members."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

from tests.adapters.torch.jobs import launch
from tests.adapters.torch.tape import Span, Tape, recording
from tracekit.adapters.torch import trace

COUNT = 6
COMPLETE = hasattr(dist.AllreduceOptions(), "asyncOp")
"""Whether gloo has every operation and functional collectives are operators; in 2.1 not yet."""
BYTES = 4 * COUNT
OBJECTS = hasattr(dist, "send_object_list")

Call = Callable[[Any, int, int, bool], Any]
"""Group, own rank in it, size of it, whether async; returns a work or nothing."""


def tensor() -> torch.Tensor:
    return torch.ones(COUNT)


def many(size: int) -> list[torch.Tensor]:
    return [tensor() for _ in range(size)]


def first_of(group: Any) -> int:
    return dist.get_process_group_ranks(group)[0]


def gather(group: Any, rank: int, size: int, later: bool) -> Any:
    into = many(size) if rank == 0 else None
    return dist.gather(tensor(), into, first_of(group), group, later)


def scatter(group: Any, rank: int, size: int, later: bool) -> Any:
    of = many(size) if rank == 0 else None
    return dist.scatter(tensor(), of, first_of(group), group, later)


def coalesced(group: Any, rank: int, size: int, later: bool) -> Any:
    with dist._coalescing_manager(group, async_ops=later) as manager:  # type: ignore[attr-defined]
        for _ in range(3):
            dist.all_reduce(tensor(), group=group)
    return manager


def all_gather_into(group: Any, rank: int, size: int, later: bool) -> Any:
    call = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    return call(torch.empty(size * COUNT), tensor(), group, later)


def reduce_scatter_into(group: Any, rank: int, size: int, later: bool) -> Any:
    call = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    return call(tensor(), torch.ones(size * COUNT), group=group, async_op=later)


OPERATIONS: dict[str, tuple[str, Call, Callable[[int], int]]] = {
    "all_reduce": (
        "all_reduce",
        lambda g, r, n, a: dist.all_reduce(tensor(), group=g, async_op=a),
        lambda n: BYTES,
    ),
    "all_gather": (
        "all_gather",
        lambda g, r, n, a: dist.all_gather(many(n), tensor(), g, a),
        lambda n: n * BYTES,
    ),
    "all_gather_into_tensor": ("all_gather", all_gather_into, lambda n: n * BYTES),
    "deprecated all_gather_into_tensor": (
        "all_gather",
        lambda g, r, n, a: dist.all_gather_into_tensor(torch.empty(n * COUNT), tensor(), g, a),
        lambda n: n * BYTES,
    ),
    "reduce_scatter": (
        "reduce_scatter",
        lambda g, r, n, a: dist.reduce_scatter(tensor(), many(n), group=g, async_op=a),
        lambda n: n * BYTES,
    ),
    "reduce_scatter_tensor": ("reduce_scatter", reduce_scatter_into, lambda n: n * BYTES),
    "all_to_all_single": (
        "all_to_all",
        lambda g, r, n, a: dist.all_to_all_single(
            torch.empty(n * COUNT), torch.ones(n * COUNT), group=g, async_op=a
        ),
        lambda n: n * BYTES,
    ),
    "broadcast": (
        "broadcast",
        lambda g, r, n, a: dist.broadcast(tensor(), first_of(g), g, a),
        lambda n: BYTES,
    ),
    "reduce": (
        "reduce",
        lambda g, r, n, a: dist.reduce(tensor(), first_of(g), group=g, async_op=a),
        lambda n: BYTES,
    ),
    "gather": ("gather", gather, lambda n: n * BYTES),
    "scatter": ("scatter", scatter, lambda n: n * BYTES),
    "barrier": ("barrier", lambda g, r, n, a: dist.barrier(g, a), lambda n: 0),
    "coalesced all_reduce": ("all_reduce", coalesced, lambda n: 3 * BYTES),
}
ROOTED = ("broadcast", "reduce", "gather", "scatter")

FUNCTIONAL: dict[str, tuple[str, Callable[[Any, int], torch.Tensor], Callable[[int], int]]] = {
    "all_reduce": (
        "all_reduce",
        lambda g, n: functional.all_reduce(tensor(), "sum", g),
        lambda n: BYTES,
    ),
    "all_gather_tensor": (
        "all_gather",
        lambda g, n: functional.all_gather_tensor(tensor(), 0, g),
        lambda n: n * BYTES,
    ),
    "reduce_scatter_tensor": (
        "reduce_scatter",
        lambda g, n: functional.reduce_scatter_tensor(torch.ones(n * COUNT), "sum", 0, g),
        lambda n: n * BYTES,
    ),
    "all_to_all_single": (
        "all_to_all",
        lambda g, n: functional.all_to_all_single(torch.ones(n * COUNT), None, None, g),
        lambda n: n * BYTES,
    ),
    "broadcast": (
        "broadcast",
        lambda g, n: functional.broadcast(tensor(), 0, g),
        lambda n: BYTES,
    ),
}


def calls(tape: Tape) -> list[Span]:
    return [span for span in tape.spans() if span.kind == "comm" and span.name != "wait"]


def waits(tape: Tape) -> list[Span]:
    return [span for span in tape.spans() if span.name == "wait"]


def agreed(spans: list[Span], group: Any) -> None:
    """All members recorded the same calls with the same numbers."""
    mine = [(span.op, span.seq, span.nbytes, span.group) for span in spans]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group)
    assert all(other == mine for other in everyone), everyone
    assert len(set(mine)) == len(mine), mine


def subgroup() -> Any:
    return dist.new_group([0, 2])


def every_operation(rank: int, ranks: int, later: bool, small: bool) -> None:
    warnings.simplefilter("ignore", FutureWarning)
    group = subgroup() if small else dist.group.WORLD
    if small and rank == 1:
        return
    size = dist.get_world_size(group)
    unsupported: list[str] = []
    with recording() as tape:
        handle = trace(nn.Linear(1, 1))
        for name, (op, call, nbytes) in OPERATIONS.items():
            before = len(calls(tape))
            try:
                work = call(group, dist.get_rank(group), size, later)
            except RuntimeError:
                unsupported.append(name)
                continue
            if later:
                work.wait()
            made = [span for span in calls(tape)[before:] if not span.error]
            assert [one.op for one in made] == [op], (name, made)
            [span] = made
            assert span.nbytes == nbytes(size), (name, span)
            assert span.group_size == size
            assert span.lane == (f"group:{span.group}" if later else "thread:MainThread"), name
            assert (span.peer == 0) == (op in ROOTED), (name, span)
            assert span.dtype == (None if op == "barrier" else "float32"), name
        handle.detach()
        assert bool(waits(tape)) == later
        assert {wait.seq for wait in waits(tape)} <= {span.seq for span in calls(tape)}
        seen = [span for span in calls(tape) if not span.error]
        dist.barrier(group)
    assert len(seen) == len(OPERATIONS) - len(unsupported)
    assert not unsupported or not COMPLETE
    assert [span.seq for span in seen] == sorted(span.seq or 0 for span in seen)
    agreed(seen, group)


@pytest.mark.parametrize("small", [False, True], ids=["default group", "sub-group"])
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_each_operation_is_one_span_with_its_bytes_and_number(
    tmp_path: Path, later: bool, small: bool
) -> None:
    launch(functools.partial(every_operation, later=later, small=small), 3, tmp_path)


def every_functional(rank: int, ranks: int, compiled: bool, small: bool) -> None:
    group = subgroup() if small else dist.group.WORLD
    if small and rank == 1:
        return
    size = dist.get_world_size(group)
    with recording() as tape:
        handle = trace(nn.Linear(1, 1))
        for name, (op, call, nbytes) in FUNCTIONAL.items():
            run: Any = functools.partial(lambda call: call(group, size) + 1, call)
            if compiled:
                run = torch.compile(run, backend="aot_eager", fullgraph=True)
                run()  # graphs are made here; nothing may be recorded of that but the one call
            before = len(calls(tape))
            run()
            made = calls(tape)[before:]
            assert [one.op for one in made] == [op], (name, made)
            assert made[0].nbytes == nbytes(size), (name, made)
            [wait] = [one for one in waits(tape) if one.seq == made[0].seq]
            assert wait.op == op
            assert wait.lane == "thread:MainThread"
        handle.detach()
        seen = calls(tape)
    assert len(seen) == len(FUNCTIONAL) * (1 + compiled)
    agreed(seen, group)


@pytest.mark.skipif(not COMPLETE, reason="functional collectives are made of others here")
@pytest.mark.parametrize("small", [False, True], ids=["default group", "sub-group"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_each_functional_collective_is_one_span(
    tmp_path: Path, compiled: bool, small: bool
) -> None:
    launch(functools.partial(every_functional, compiled=compiled, small=small), 3, tmp_path)


def compiled_eager_names(rank: int, ranks: int) -> None:
    """The compiler turns calls of torch.distributed into functional ones: still one span each."""

    def step(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        out = torch.empty(ranks * COUNT)
        dist.all_gather_into_tensor(out, x)
        return out + 1

    warnings.simplefilter("ignore", FutureWarning)
    run = torch.compile(step, backend="aot_eager")
    with recording() as tape:
        handle = trace(nn.Linear(1, 1))
        run(tensor())
        before = len(calls(tape))
        run(tensor())
        assert [span.op for span in calls(tape)[before:]] == ["all_reduce", "all_gather"]
        handle.detach()
        seen = calls(tape)
    agreed(seen, dist.group.WORLD)


@pytest.mark.skipif(not COMPLETE, reason="functional collectives are made of others here")
def test_compiled_calls_of_the_usual_functions_are_seen_once(tmp_path: Path) -> None:
    launch(compiled_eager_names, 2, tmp_path)


def every_object(rank: int, ranks: int) -> None:
    with recording() as tape:
        handle = trace(nn.Linear(1, 1))
        whole: list[Any] = [None] * ranks
        dist.all_gather_object(whole, {"rank": rank})
        dist.broadcast_object_list([rank, "x" * 1000], 1)
        dist.gather_object(rank, [None] * ranks if rank == 0 else None, 0)
        dist.scatter_object_list([None], [*range(ranks)] if rank == 0 else None, 0)
        dist.monitored_barrier()
        handle.detach()
        seen = calls(tape)
    assert [span.op for span in seen] == [
        "all_gather_object",
        "broadcast_object_list",
        "gather_object",
        "scatter_object_list",
        "monitored_barrier",
    ]
    assert [span.peer for span in seen] == [None, 1, 0, 0, None]
    assert (seen[1].nbytes or 0) > 1000
    assert all(span.lane == "thread:MainThread" for span in seen)
    spans = [(span.op, span.seq) for span in seen]
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, spans)
    assert everyone == [spans] * ranks


def test_what_exchanges_objects_is_one_span_though_it_is_several_calls(tmp_path: Path) -> None:
    launch(every_object, 3, tmp_path)


def messages(rank: int, ranks: int) -> None:
    with recording() as tape:
        handle = trace(nn.Linear(1, 1))
        if rank == 0:
            dist.send(tensor(), 1)
            sent: Any = dist.isend(tensor(), 1, tag=7)
            sent.wait()
            if OBJECTS:
                dist.send_object_list(["there"], 1)
        elif rank == 1:
            dist.recv(tensor(), 0)
            received: Any = dist.irecv(tensor(), 0, tag=7)
            received.wait()
            if OBJECTS:
                dist.recv_object_list([None], 0)
        both = [
            dist.P2POp(dist.isend, tensor(), (rank + 1) % ranks),
            dist.P2POp(dist.irecv, tensor(), (rank - 1) % ranks),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        dist.all_reduce(tensor())
        handle.detach()
        seen = calls(tape)
    *exchanged, reduce = seen
    key: dict[Any, int | None] = {
        (rank, s.peer, s.seq) if s.op == "send" else (s.peer, rank, s.seq): s.nbytes
        for s in exchanged
    }
    assert len(key) == len(exchanged) == 2 + (2 + OBJECTS) * (rank < 2)
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, (key, reduce.seq))
    for (source, destination, seq), nbytes in key.items():
        for end in (source, destination):
            assert everyone[end][0][source, destination, seq] == nbytes
    assert len({number for _, number in everyone}) == 1  # though not all sent as much before


def test_sends_and_receives_have_one_number_on_both_sides_and_leave_that_of_the_group_alone(
    tmp_path: Path,
) -> None:
    launch(messages, 3, tmp_path)


def imported_before(rank: int, ranks: int) -> None:
    reduce = dist.all_reduce
    with recording() as tape:
        handle = trace(nn.Linear(1, 1))
        reduce(tensor())
        dist.group.WORLD.allreduce([tensor()]).wait()  # type: ignore[union-attr]
        handle.detach()
        reduce(tensor())
        assert [span.op for span in calls(tape)] == ["all_reduce", "all_reduce"]
        assert not isinstance(vars(dist.ProcessGroup)["allreduce"], type(imported_before))


def test_names_that_were_imported_before_are_seen_and_detach_puts_back_the_methods(
    tmp_path: Path,
) -> None:
    launch(imported_before, 2, tmp_path)


def failing(rank: int, ranks: int) -> None:
    with recording() as tape:
        handle = trace(nn.Linear(1, 1))
        if rank == 0:
            for later in (False, True, False, True):
                with pytest.raises((RuntimeError, ValueError)):
                    dist.all_gather_into_tensor(torch.empty(1), tensor(), async_op=later)
        with pytest.raises((TypeError, RuntimeError)):
            dist.all_reduce("nothing")
        handle.detach()
        assert not tape.open_spans()
        assert [span.error for span in calls(tape)] == [True] * 4 * (rank == 0)


def test_a_call_that_raises_is_made_once_raises_as_before_and_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    launch(failing, 2, tmp_path)


def again(rank: int, ranks: int) -> None:
    """Another default group after the first one: its calls are numbered anew, its name differs."""
    store = torch._C._distributed_c10d.HashStore()
    with recording() as tape:
        handle = trace(nn.Linear(1, 1))
        dist.all_reduce(tensor())
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        dist.all_reduce(tensor())
        handle.detach()
        one, two = calls(tape)
    assert (one.seq, two.seq) == (1, 1)
    assert one.group != two.group


def test_a_second_default_group_is_another_group(tmp_path: Path) -> None:
    launch(again, 1, tmp_path)
