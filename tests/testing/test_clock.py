"""A clock that tests turn."""

from __future__ import annotations

import pytest

from tracekit.testing import FakeClock


def test_time_passes_when_it_is_told_to() -> None:
    clock = FakeClock(100)
    assert clock() == clock() == 100
    assert clock.advance(ns=5, ms=1, s=2) == 2_001_000_105 == clock()


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(ns=-1)
