"""The span of OpenTelemetry around a run: the active one, else what TRACEPARENT says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tracekit.journal.reader import find_journals, open_journal
from tracekit.session._environment import read_environment

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
AROUND = {"trace_id": TRACE, "span_id": SPAN}


def told(run_dir: Path) -> list[object]:
    """What the ranks say of the span around them."""
    return [
        json.loads(fact.value)
        for head in find_journals(run_dir / "attempt-000" / "journal")
        for fact in open_journal(head).definitions.facts
        if fact.name == "otel_parent"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", AROUND),
        (f" 00-{TRACE.upper()}-{SPAN}-00\n", AROUND),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", AROUND),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE[:-1]}-{SPAN}-01", None),
        ("no trace", None),
        ("", None),
    ],
)
def test_a_traceparent_is_taken_only_when_it_is_one(
    text: str, expected: dict[str, str] | None
) -> None:
    assert read_environment({"TRACEPARENT": text}).traceparent == expected


def test_every_rank_of_the_process_says_which_span_was_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{SPAN}-01")
    session = tracekit.start(run="r", dir=str(tmp_path), rank=0, world_size=2, agent=False)
    assert session is not None
    with tracekit.as_rank(1):
        tracekit.event("here")
    tracekit.stop()
    assert told(session.run_dir) == [AROUND, AROUND]


def test_without_a_span_around_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRACEPARENT", raising=False)
    session = tracekit.start(run="r", dir=str(tmp_path), rank=0, world_size=1, agent=False)
    assert session is not None
    tracekit.stop()
    assert told(session.run_dir) == []


def test_the_active_span_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{SPAN}-01")
    context = trace.SpanContext(0xABC, 0xDEF, is_remote=False)
    with trace.use_span(trace.NonRecordingSpan(context)):
        session = tracekit.start(run="r", dir=str(tmp_path), rank=0, world_size=1, agent=False)
    assert session is not None
    tracekit.stop()
    assert told(session.run_dir) == [{"trace_id": f"{0xABC:032x}", "span_id": f"{0xDEF:016x}"}]


def test_opentelemetry_is_never_imported_to_ask_it(tmp_path: Path) -> None:
    script = """
import sys, tracekit
tracekit.start(dir=sys.argv[1], rank=0, world_size=1, agent=False)
tracekit.stop()
sys.exit("opentelemetry" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == 0
