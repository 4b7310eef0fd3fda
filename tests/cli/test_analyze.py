"""``tracekit analyze``: formats, options, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call, make_run
from tracekit.analysis import Options
from tracekit.cli._options import parse_steps, parse_thresholds
from tracekit.dataset import write_table
from tracekit.errors import UsageError
from tracekit.testing import RunBuilder


@pytest.fixture
def slow_run(tmp_path: Path) -> Path:
    """A run whose rank 2 is slow in its forward."""
    builder = RunBuilder(world_size=4)
    for _ in range(60):
        builder.step(forward={2: 30})
    run = tmp_path / "slow run"
    for name, table in builder.tables().items():
        write_table(run, name, table)
    return run


def test_text_names_the_slow_rank(call: Call, slow_run: Path) -> None:
    done = call("analyze", slow_run)
    assert (done.code, done.err) == (0, "")
    assert "Rank 2 makes the others wait" in done.out
    assert "\x1b" not in done.out


def test_json_is_one_object_and_nothing_else(call: Call, slow_run: Path) -> None:
    done = call("analyze", slow_run, "--format", "json")
    assert (done.code, done.err) == (0, "")
    verdict = json.loads(done.out)
    assert [one["rank"] for one in verdict["stragglers"]] == [2]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 0),
        (["--fail-on", "critical"], 1),
        (["--fail-on", "warning"], 1),
        (["--fail-on", "critical", "--steps", ":9"], 0),  # too few steps for a critical verdict
        (["--fail-on", "critical", "--threshold", "straggler-critical=0.9"], 0),
    ],
)
def test_findings_decide_the_exit_code_where_asked(
    call: Call, slow_run: Path, arguments: list[str], code: int
) -> None:
    assert call("analyze", slow_run, *arguments).code == code


def test_steps_limit_what_is_looked_at(call: Call, slow_run: Path) -> None:
    done = call("analyze", slow_run, "--format", "json", "--steps", "10:29")
    run = json.loads(done.out)["run"]
    assert (run["first_step"], run["last_step"], run["steps"]) == (10, 29, 20)


def test_the_report_goes_to_a_file(call: Call, slow_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "verdict.json"
    file.write_text("an older one")
    done = call("analyze", slow_run, "--format", "json", "-o", file)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert json.loads(file.read_text())["symptom"] == "slow"
    assert sorted(tmp_path.iterdir()) == [slow_run, file]


def test_a_report_that_cannot_be_written_is_one_line(call: Call, slow_run: Path) -> None:
    done = call("analyze", slow_run, "-o", slow_run / "gone" / "verdict.txt")
    assert done.code == 2
    assert done.line.endswith("verdict.txt: No such file or directory")


def test_several_runs_are_told_one_after_another(call: Call, tmp_path: Path) -> None:
    runs = [make_run(tmp_path, label) for label in ("monday", "tuesday")]
    text = call("analyze", *runs)
    assert (text.code, text.out.count("files, no span dropped")) == (0, 2)
    done = call("analyze", *runs, "--format", "json")
    assert [one["run"]["ranks"] for one in json.loads(done.out)["runs"]] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("text", "steps"),
    [(None, (None, None)), ("3:7", (3, 7)), ("3:", (3, None)), (":7", (None, 7)), ("5:5", (5, 5))],
)
def test_steps_are_from_and_to(text: str | None, steps: tuple[int | None, int | None]) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize("text", ["", ":", "7", "7:3", "a:b", "-1:5"])
def test_steps_that_cannot_be_meant_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--steps"):
        parse_steps(text)


def test_every_threshold_is_an_option() -> None:
    chosen = parse_thresholds(["p-value=0.05", "critical_steps=10"], Options())
    assert chosen == {"p_value": 0.05, "critical_steps": 10}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("speed=1", "the thresholds are .*straggler_warning"),
        ("p_value", "p_value is a number"),
        ("critical_steps=1.5", "critical_steps is an integer"),
        ("first_step=1", "the thresholds are"),
    ],
)
def test_thresholds_that_cannot_be_meant_are_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_thresholds([text], Options())
