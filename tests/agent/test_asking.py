"""A stuck rank is asked for its last calls: with stacks once, again after a minute, no more."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from tracekit.agent._watch import ASKED_EVERY_NS, Vitals, Watch

SECOND = 1_000_000_000


def stuck(since: int) -> Vitals:
    """A rank in a step that began then; those before took a millisecond each."""
    return Vitals(0, since, since, lambda: [1_000_000] * 5)


@pytest.fixture
def asked() -> list[bool]:
    return []


@pytest.fixture
def watch(tmp_path: Path, asked: list[bool]) -> Watch:
    return Watch(os.getpid(), None, None, tmp_path / "stacks.json", asked.append)


def test_nobody_is_asked_while_steps_end(watch: Watch, asked: list[bool]) -> None:
    for second in range(100):
        watch.look(stuck(second * SECOND), second * SECOND + SECOND // 2, 0)
    assert asked == []


def test_a_stall_is_asked_about_twice_the_first_time_with_stacks(
    watch: Watch, asked: list[bool]
) -> None:
    for second in range(400):
        watch.look(stuck(0), second * SECOND, 0)
    assert asked == [True, False]


def test_stalls_that_follow_each_other_are_asked_about_once_a_minute(
    watch: Watch, asked: list[bool]
) -> None:
    times = []
    for second in range(300):
        before = len(asked)
        watch.look(stuck(second // 15 * 15 * SECOND), second * SECOND, 0)
        times += [second * SECOND] * (len(asked) - before)
    assert len(times) > 2
    assert all(asked)
    assert all(b - a >= ASKED_EVERY_NS for a, b in pairwise(times))


def test_who_cannot_be_asked_is_watched_all_the_same(tmp_path: Path) -> None:
    def gone(stacks: bool) -> None:
        raise FileNotFoundError

    watch = Watch(os.getpid(), None, None, tmp_path / "stacks.json", gone)
    assert watch.look(stuck(0), 20 * SECOND, 0)
