"""The plain function: both rules on lists of seconds, by the standard library alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tracekit
from tracekit.analysis.slow.stragglers import find_stragglers, sign_test


def test_four_times_the_work_is_named_by_both_rules() -> None:
    (only,) = find_stragglers({0: [0.4] * 4, 1: [0.4] * 4, 2: [0.4] * 4, 3: [1.6] * 4})
    assert (only.rank, only.rules) == (3, ("peer", "mean"))
    assert only.imposed_wait == pytest.approx(1.2)


def test_the_mean_rule_is_blind_where_the_peer_rule_sees_a_fifth_of_the_step() -> None:
    (only,) = find_stragglers({0: [0.4] * 9, 1: [0.4] * 9, 2: [0.4] * 9, 3: [0.5] * 9})
    assert (only.rank, only.rules) == (3, ("peer",))
    assert only.share == pytest.approx(0.2)


def test_of_two_ranks_the_mean_rule_needs_almost_twice_the_work() -> None:
    (only,) = find_stragglers({0: [1.0] * 5, 1: [1.8] * 5})
    assert only.rules == ("peer",)
    (only,) = find_stragglers({0: [1.0] * 5, 1: [1.9] * 5})
    assert only.rules == ("peer", "mean")


def test_half_of_the_ranks_slow_alike_keep_nobody_waiting_alone() -> None:
    assert find_stragglers({0: [1.0] * 5, 1: [1.0] * 5, 2: [1.4] * 5, 3: [1.4] * 5}) == []


def test_turns_make_no_straggler() -> None:
    assert find_stragglers({0: [1.0, 1.5, 1.0], 1: [1.5, 1.0, 1.0], 2: [1.0, 1.0, 1.5]}) == []


@pytest.mark.parametrize("work", [{}, {0: [1.0]}, {0: [], 1: [1.0]}, {0: [0.0], 1: [0.0]}])
def test_nothing_to_compare_names_nobody(work: dict[int, list[float]]) -> None:
    assert find_stragglers(work) == []


def test_the_threshold_is_the_mean_rule_s() -> None:
    work = {0: [1.0] * 5, 1: [1.0] * 5, 2: [1.0] * 5, 3: [1.2] * 5}
    assert find_stragglers(work, threshold=1.1)[0].rules == ("peer", "mean")


def test_the_sign_test_is_one_sided_and_corrected() -> None:
    assert sign_test(10, 10) == pytest.approx(2**-10)
    assert sign_test(10, 10, tests=4) == pytest.approx(4 * 2**-10)
    assert sign_test(9, 10) == pytest.approx(11 * 2**-10)
    assert sign_test(3, 3, 1 / 4) == pytest.approx(4**-3)
    assert sign_test(0, 10, tests=4) == 1.0


def test_it_is_a_public_name_that_loads_nothing_else() -> None:
    assert tracekit.find_stragglers is find_stragglers
    code = (
        "import sys, tracekit; tracekit.find_stragglers({0: [1.0], 1: [2.0]});"
        "print(*[m for m in ('numpy', 'pyarrow', 'duckdb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
