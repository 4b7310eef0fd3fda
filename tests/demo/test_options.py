"""What a fault may be."""

from __future__ import annotations

import pytest

from tracekit.cli._demo.options import Fault, Training, parse_faults
from tracekit.errors import UsageError


def test_faults_are_kind_and_rank() -> None:
    assert parse_faults(["forward:2", "gc:0"], 4) == (Fault("forward", 2), Fault("gc", 0))


@pytest.mark.parametrize("texts", [[], ["none"], ["none:0"], ["none", "none"]])
def test_none_is_no_fault(texts: list[str]) -> None:
    assert parse_faults(texts, 4) == ()


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["fast:1"], "the kinds are none data forward"),
        (["forward"], "say which rank, as in forward:2"),
        (["forward:"], "say which rank"),
        (["forward:two"], "say which rank"),
        (["forward:-1"], "say which rank"),
        (["forward:4"], "the ranks are 0 to 3"),
        (["none:x"], "say which rank"),
        (["hang:1", "kill:2"], "one of hang and kill"),
    ],
)
def test_what_cannot_be_meant_is_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_faults(texts, 4)


def test_the_worker_is_told_all() -> None:
    training = Training(steps=9, faults=(Fault("data", 1),), size=0.2, every=3, batchnorm=False)
    assert training.arguments() == (
        ["--steps", "9", "--size", "0.2", "--every", "3", "--fault", "data:1", "--no-batchnorm"]
    )
