"""Clocks of several hosts: the middle of what causality allows, and an error that is never less."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis import Analysis, analyze
from tracekit.analysis.basis._lines import Bounds, middle
from tracekit.model import Correction
from tracekit.testing.builder import RunBuilder

MS = 1_000_000
EPOCH = 1_700_000_000_000_000_000


def shifted(run: RunBuilder, offsets: dict[str, tuple[int, float]]) -> RunBuilder:
    """The run as hosts would have recorded it whose clocks differ by an offset and a drift."""
    for row in (*run.spans, *run.events):
        offset, drift = offsets.get(run.hosts[row["rank"]], (0, 0.0))
        for column in ("start_ns", "time_ns"):
            if column in row:
                time = row[column]
                row[column] = time + offset + int(drift * (time - EPOCH))
    return run


def healthy(hosts: tuple[str, ...] = ("a", "b"), steps: int = 80, ranks: int = 4) -> RunBuilder:
    """Each rank is a little late now and then, so nobody is always the last."""
    run = RunBuilder(ranks, hosts=hosts, jitter=0.1, transfer=0.2, seed=3)
    run.steps(steps)
    return run


def verdict(run: RunBuilder) -> Analysis:
    return analyze(run.engine())


def corrections(analysis: Analysis, rank: int) -> list[Correction]:
    found: list[Correction] = analysis.details["corrections"][rank]
    return found


@pytest.mark.parametrize("offset_ms", [0, 0.3, -40, 3_600_000, -86_400_000])
@pytest.mark.parametrize("drift", [0.0, 40e-6, -120e-6])
def test_the_offset_is_found_within_its_error(offset_ms: float, drift: float) -> None:
    offset = int(offset_ms * MS)
    run = shifted(healthy(), {"b": (offset, drift)})
    end = max(row["start_ns"] for row in run.spans if row["rank"] == 3)
    analysis = verdict(run)
    assert analysis.clock.aligned
    assert analysis.clock.error_us is not None
    assert analysis.clock.error_us < 5_000
    for time in (EPOCH, end - offset):  # as the first clock has it
        told = time + offset + int(drift * (time - EPOCH))
        (found,) = corrections(analysis, 3)
        wrong = abs(told + found.at(told) - time)
        assert wrong <= found.error_ns + 1
    assert corrections(analysis, 0) == []


def test_aligned_runs_say_what_one_clock_would_have_said() -> None:
    plain, moved = healthy(), shifted(healthy(), {"b": (-7_000 * MS, 20e-6)})
    for fact in plain.facts:
        if fact["name"] == "clock":
            fact["value"] = '{"domain": "one"}'
    expected, found = verdict(plain), verdict(moved)
    assert found.stragglers == expected.stragglers == ()
    assert found.shares is not None
    assert expected.shares is not None
    assert found.shares.compute == pytest.approx(expected.shares.compute, abs=0.02)
    assert found.shares.wait == pytest.approx(expected.shares.wait, abs=0.05)


def test_a_rank_that_is_late_only_at_times_is_named_across_hosts() -> None:
    run = RunBuilder(4, hosts=("a", "b"), jitter=0.1, transfer=0.2, seed=3)
    for number in range(120):
        run.step(forward={2: 30.0} if number % 4 else None)
    analysis = verdict(shifted(run, {"b": (123 * MS, 10e-6)}))
    assert analysis.clock.aligned
    assert [(one.rank, one.cause) for one in analysis.stragglers] == [(2, "forward")]


def test_who_is_always_last_cannot_be_told_from_a_clock_that_is_wrong() -> None:
    run = RunBuilder(4, hosts=("a", "b"))
    run.steps(60, forward={2: 25.0, 3: 25.0})
    analysis = verdict(shifted(run, {"b": (5 * MS, 0.0)}))
    assert not analysis.clock.aligned
    assert analysis.stragglers == ()
    assert "clock.unaligned" in [finding.id for finding in analysis.findings]


def test_a_clock_that_is_set_during_the_run_is_followed() -> None:
    run = healthy(steps=200)
    half = EPOCH + (max(row["start_ns"] for row in run.spans) - EPOCH) // 2
    for row in run.spans:
        if run.hosts[row["rank"]] == "b" and row["start_ns"] >= half:
            row["start_ns"] += 500 * MS
    analysis = verdict(run)
    assert analysis.clock.aligned
    first, *_, last = corrections(analysis, 2)
    assert abs(last.offset_ns - first.offset_ns + 500 * MS) <= first.error_ns + last.error_ns + 1


def test_hosts_are_aligned_through_others() -> None:
    """Ranks 0 and 3 never meet; 1 and 2 meet both."""
    run = RunBuilder(4, hosts=("a", "b", "c", "d"), jitter=0.1, transfer=0.2)
    chance = random.Random(1)
    now = EPOCH
    for number in range(100):
        for group, members in (("ab", (0, 1)), ("bc", (1, 2)), ("cd", (2, 3))):
            arrivals = {rank: now + chance.randrange(2 * MS) for rank in members}
            end = max(arrivals.values()) + MS // 10
            for rank, start in arrivals.items():
                run.collective(
                    rank, "all_reduce", number, start, end, group=group, group_size=2, step=number
                )
            now = end
        for rank in range(4):
            run.span(rank, "step", now - 6 * MS, now, "train_step", number)
    offsets = {"b": (3 * MS, 0.0), "c": (-9 * MS, 0.0), "d": (1000 * MS, 0.0)}
    analysis = verdict(shifted(run, offsets))
    assert [domain.offset_us is not None for domain in analysis.clock.domains] == [True] * 4
    for rank, host in enumerate("abcd"):
        if host != "a":
            (found,) = corrections(analysis, rank)
            assert abs(found.at(EPOCH) + offsets[host][0]) <= found.error_ns + 1


def test_without_calls_between_hosts_nothing_is_known() -> None:
    run = healthy()
    run.spans = [row for row in run.spans if row["kind"] != "comm"]
    analysis = verdict(run)
    assert not analysis.clock.aligned
    assert analysis.clock.domains[0].offset_us == 0.0
    assert analysis.clock.domains[1].offset_us is None


def test_a_number_that_a_rank_used_twice_bounds_nothing() -> None:
    run = healthy()
    lie = next(row for row in run.spans if row["kind"] == "comm" and row["rank"] == 3)
    run.spans.append({**lie, "span_id": 10_000, "start_ns": lie["start_ns"] + 10_000 * MS})
    analysis = verdict(run)
    assert analysis.clock.aligned


@given(
    start=st.floats(-1e6, 1e6),
    slope=st.floats(-4e-4, 4e-4),
    gaps=st.lists(
        st.tuples(st.floats(0, 1e9), st.floats(0, 1e6), st.floats(0, 1e6)), min_size=2, max_size=40
    ),
)
@settings(max_examples=200, deadline=None)
def test_the_true_line_is_never_farther_than_the_error(
    start: float, slope: float, gaps: list[tuple[float, float, float]]
) -> None:
    lower = [(time, start + slope * time - below) for time, below, _ in gaps]
    upper = [(time, start + slope * time + above) for time, _, above in gaps]
    end = max(time for time, _, _ in gaps)
    found = middle(Bounds(lower, upper), 0.0, end)
    assert found is not None
    for time in (0.0, end / 3, end):
        wrong = abs(start + slope * time - found.start - found.slope * time)
        assert wrong <= found.error + 2


def test_bounds_that_exclude_each_other_leave_no_line() -> None:
    assert middle(Bounds([(0.0, 10.0)], [(0.0, 5.0)]), 0.0, 1e9) is None
    assert middle(Bounds([], [(0.0, 5.0)]), 0.0, 1e9) is None
