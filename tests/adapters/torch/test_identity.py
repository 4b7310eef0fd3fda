"""What the process group tells the session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn

from tests.adapters.torch.tape import recording
from tracekit import recorder
from tracekit.adapters.torch import trace
from tracekit.adapters.torch._comm.group import Group
from tracekit.adapters.torch._facts import identity as _identity


@pytest.fixture
def process_group() -> Iterator[None]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_first_proposal_wins(process_group: None) -> None:
    assert _identity.agree("tracekit/uid", "one") == "one"
    assert _identity.agree("tracekit/uid", "two") == "one"
    assert _identity.agree("tracekit/other", "two") == "two"


def test_a_store_that_does_not_answer_costs_a_second(
    process_group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, answered = threading.Event(), threading.Event()

    class Stuck:
        def compare_set(self, *_: Any) -> Any:
            let_go.wait(60)
            answered.set()

    monkeypatch.setattr(_identity, "STORE_BOUND_S", 0.1)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", Stuck)
    with pytest.raises(TimeoutError):
        _identity.agree("tracekit/uid", "one")
    assert not answered.is_set()  # nobody waited for it
    let_go.set()
    assert answered.wait(60)


def test_trace_binds_rank_and_world_size(
    process_group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[dict[str, Any]] = []
    monkeypatch.setattr(recorder, "bind_identity", lambda **known: bound.append(known))
    with recording():
        trace(nn.Linear(1, 1)).detach()
    [known] = bound
    assert (known["rank"], known["world_size"]) == (0, 1)
    assert known["uid_store"]("tracekit/uid", "mine") == "mine"


def test_without_a_process_group_nothing_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[dict[str, Any]] = []
    monkeypatch.setattr(recorder, "bind_identity", lambda **known: bound.append(known))
    with recording() as tape:
        trace(nn.Linear(1, 1)).detach()
    assert bound == []
    [facts] = tape.fact("versions")
    assert facts["torch"] == torch.__version__


def test_groups_of_the_same_ranks_have_names_of_their_own(process_group: None) -> None:
    with recording():
        twin = dist.new_group([0])
        default = dist.distributed_c10d._get_default_group()
        one, two = Group(default), Group(twin)
        assert one.ranks == two.ranks == [0]
        assert one.id != two.id
        assert Group(default).id == one.id
