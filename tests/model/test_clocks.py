"""Putting one clock on another."""

from __future__ import annotations

import itertools

import pytest

from tracekit.model import clocks

APART = 1_700_000_000_000_000_000


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_process_that_is_put_aside_between_two_clocks_reads_the_same_offset(
    monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    now = itertools.count(5_000_000, 50)
    aside = {
        3 * late + 1: 8_000_000,
        3 * late + 2: 3_000_000,
    }  # before the second, before the third
    passed = 0
    asked = itertools.count()

    def monotonic() -> int:
        nonlocal passed
        passed += aside.get(next(asked), 0)
        return next(now) + passed

    monkeypatch.setattr(clocks, "monotonic_ns", monotonic)
    monkeypatch.setattr(clocks, "time_ns", lambda: APART + monotonic())
    assert abs(clocks.offset_now() - APART) <= 50
