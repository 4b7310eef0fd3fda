"""Live export from the agent: what servers do, nothing is lost without being counted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.exporters.otlp.readback import ReadSpan, spans_of
from tests.exporters.otlp.server import OtlpServer, Reply, partial
from tracekit.dataset import open_run
from tracekit.exporters._otel.spans import RunIds, run_trace_id
from tracekit.model import span_id, step_trace_id

JOB = Path(__file__).with_name("live_job.py")
OVER_S = 60.0


class Live:
    """A job under way or over, with what its agent said of the export."""

    def __init__(self, process: subprocess.Popen[str], run_dir: Path) -> None:
        self.process, self.run_dir = process, run_dir

    def ended(self) -> dict[str, Any]:
        """Wait for job and agent; what the agent wrote down."""
        out, err = self.process.communicate(timeout=OVER_S)
        assert self.process.returncode == 0, err
        assert json.loads(out)["network"] == []
        return self.report()

    def report(self) -> dict[str, Any]:
        attempt = self.run_dir / "attempt-000"
        give_up = time.monotonic() + OVER_S
        while time.monotonic() < give_up:
            found = list(attempt.glob("otlp-*.json"))
            if found and not list(attempt.glob("agent-*.lock")):
                report: dict[str, Any] = json.loads(found[0].read_bytes())
                return report
            time.sleep(0.05)
        raise AssertionError("the agent does not end")

    def recorded(self) -> set[tuple[str, str]]:
        """The ids of all spans in the run."""
        with open_run(self.run_dir) as run:
            rows = run.table("spans", ["rank", "step", "span_id"]).to_pylist()
            uid = run.run_id
        return {
            (
                (
                    run_trace_id(uid, 0)
                    if row["step"] is None
                    else step_trace_id(uid, 0, row["step"])
                ).hex(),
                span_id(uid, 0, row["rank"], row["span_id"]).hex(),
            )
            for row in rows
        }

    def steps(self) -> int:
        """How many steps the run has so far."""
        with open_run(self.run_dir) as run:
            return len(set(run.table("spans", ["step"]).column("step").to_pylist()) - {None})

    def of_run(self) -> set[tuple[str, str]]:
        """The ids of the spans around everything, in a run of one rank."""
        with open_run(self.run_dir) as run:
            ids = RunIds(run.run_id, 0)
        return {(ids.trace(None).hex(), ids.run_span(rank).hex()) for rank in (-1, 0)}


@contextmanager
def live(
    folder: Path,
    endpoint: str,
    environ: Mapping[str, str] = MappingProxyType({}),
    *,
    steps: int = 4,
    pause: float = 0.0,
    ranks: int = 1,
) -> Iterator[Live]:
    """Start a job; its agent is killed at the end if it should still be there."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TRACEKIT_"))},
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_METRICS_EXPORTER": "none",
        "TRACEKIT_OTLP": "all",
        **environ,
    }
    arguments = [sys.executable, str(JOB), str(folder), str(steps), str(pause), str(ranks)]
    process = subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Live(process, folder / "live")
    finally:
        process.kill()
        process.communicate()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"tracekit.agent" in words and str(folder / "live").encode() in words:
                os.kill(int(path.parent.name), signal.SIGKILL)


def received(server: OtlpServer) -> list[ReadSpan]:
    return [span for one in server.received for span in spans_of(one.message)]


def ids(spans: list[ReadSpan]) -> list[tuple[str, str]]:
    return [(span.trace_id, span.span_id) for span in spans]


def test_every_recorded_span_arrives_once_with_the_id_that_was_predicted(tmp_path: Path) -> None:
    with OtlpServer() as server, live(tmp_path, server.endpoint, ranks=3) as job:
        report = job.ended()
        spans = received(server)
        found = Counter(ids(spans))
        assert max(found.values()) == 1
        runs = [span for span in spans if span.name == "train_run"]
        assert set(found) == job.recorded() | set(ids(runs))
        assert len(runs) == 4
        assert report["spans"] == len(spans)
        assert report["steps"] == 4
        assert (report["rejected"], report["refused"], report["left_spans"]) == (0, 0, 0)
        for number in range(4):
            tops = [
                s
                for s in spans
                if s.attributes.get("dl.iteration") == number and s.name == "train_step"
            ]
            assert sorted(int(str(top.resource["dl.rank"])) for top in tops) == [0, 1, 2]
            assert len({top.trace_id for top in tops}) == 1
            assert {top.parent_id for top in tops} == {""}
            assert all(top.links[-1][0] == runs[0].trace_id for top in tops)
            assert all(top.events == ("loss",) for top in tops)


def test_the_rule_chooses_and_says_why(tmp_path: Path) -> None:
    rule = "first=2,every=5,slow=0"
    with (
        OtlpServer() as server,
        live(tmp_path, server.endpoint, {"TRACEKIT_OTLP": rule}, steps=14) as job,
    ):
        report = job.ended()
        why = {
            span.attributes["dl.iteration"]: span.attributes["tracekit.sample.reason"]
            for span in received(server)
            if span.name == "train_step"
        }
    assert why == {
        0: "first",
        1: "first",
        5: "every",
        10: "every",
        12: "checkpoint",
        13: "checkpoint",
    }
    assert report["rule"] == "first=2,every=5,slow=0,checkpoints=1"
    assert report["steps"] == 6


UNAVAILABLE = Reply(503)
BUSY = Reply(429, headers={"Retry-After": "1"})
CUT = Reply(body=partial(0, "x" * 1000), cut_after=10)
HUGE = Reply(endless=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "replies",
    [[UNAVAILABLE], [BUSY], [CUT], [Reply(raw=b"")], [Reply(trickle_s=0.3)], [Reply(502), BUSY]],
    ids=["503", "429", "cut", "closed", "slow", "502-429"],
)
def test_what_may_be_sent_again_is_until_it_is_taken(tmp_path: Path, replies: list[Reply]) -> None:
    timeout = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1000"}
    with (
        OtlpServer(*replies) as server,
        live(tmp_path, server.endpoint, timeout, steps=14, pause=1.0) as job,
    ):
        report = job.ended()
        assert set(ids(received(server))) == job.recorded() | job.of_run()
    assert (report["rejected"], report["refused"], report["left_spans"]) == (0, 0, 0)


@pytest.mark.parametrize(
    "reply",
    [Reply(400), Reply(404), Reply(302, headers={"Location": "http://localhost:1/"})],
    ids=["400", "404", "redirect"],
)
def test_what_is_refused_for_good_is_counted_and_the_rest_goes_on(
    tmp_path: Path, reply: Reply
) -> None:
    with OtlpServer(reply) as server, live(tmp_path, server.endpoint) as job:
        report = job.ended()
        first = len(spans_of(server.received[0].message))
        assert report["refused"] == first
        assert report["spans"] == len(received(server)) - first
        assert report["message"]
        everything = job.recorded() | job.of_run()
        assert report["refused"] + report["spans"] == len(everything)
        with open_run(job.run_dir) as run:
            (told,) = run.coverage.exports
    assert (told.refused, told.spans) == (first, report["spans"])


def test_what_a_partial_success_rejects_is_counted(tmp_path: Path) -> None:
    with (
        OtlpServer(Reply(body=partial(2, "too old"))) as server,
        live(tmp_path, server.endpoint) as job,
    ):
        report = job.ended()
        assert len(ids(received(server))) == len(set(ids(received(server))))
    assert (report["rejected"], report["message"]) == (2, "too old")


def test_a_huge_answer_does_not_stop_the_export(tmp_path: Path) -> None:
    with OtlpServer(HUGE) as server, live(tmp_path, server.endpoint) as job:
        job.ended()
        assert set(ids(received(server))) == job.recorded() | job.of_run()


@pytest.mark.slow
def test_what_was_recorded_while_the_backend_was_away_arrives_when_it_is_back(
    tmp_path: Path,
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = int(reserved.getsockname()[1])
    with live(tmp_path, f"http://127.0.0.1:{port}", steps=12, pause=1.0) as job:
        away = threading.Event()
        away.wait(7.0)
        assert job.process.poll() is None
        with OtlpServer(port=port) as server:
            report = job.ended()
            assert set(ids(received(server))) == job.recorded() | job.of_run()
    assert report["left_spans"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("reply", [None, Reply(hang=True)], ids=["nobody", "hangs"])
def test_the_agent_ends_within_its_bound_and_counts_what_is_left(
    tmp_path: Path, reply: Reply | None
) -> None:
    with OtlpServer(*([reply] * 50 if reply else [])) as server:
        endpoint = server.endpoint if reply else "http://127.0.0.1:1"
        with live(tmp_path, endpoint) as job:
            report = job.ended()
            assert report["finished"]
            assert report["left_spans"] == len(job.recorded())
            assert report["left_steps"] == 4
            assert report["message"]


def test_a_killed_job_s_spans_are_exported_too(tmp_path: Path) -> None:
    with (
        OtlpServer() as server,
        live(tmp_path, server.endpoint, steps=1000, pause=0.05) as job,
    ):
        ranks = job.run_dir / "attempt-000" / "ranks"
        give_up = time.monotonic() + OVER_S
        while not list(ranks.glob("*.json")) and time.monotonic() < give_up:
            time.sleep(0.05)
        while job.steps() < 6 and time.monotonic() < give_up:
            time.sleep(0.1)
        job.process.kill()
        job.process.communicate()
        report = job.report()
        assert set(ids(received(server))) == job.recorded() | job.of_run()
    assert report["steps"] > 3


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"TRACEKIT_OTLP": "0"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "", "TRACEKIT_OTLP": ""},
    ],
)
def test_nothing_is_exported_where_the_environment_does_not_want_it(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with OtlpServer() as server:
        with live(tmp_path, server.endpoint, environ, steps=2) as job:
            _, err = job.process.communicate(timeout=OVER_S)
            assert job.process.returncode == 0, err
            attempt = job.run_dir / "attempt-000"
            while list(attempt.glob("agent-*.lock")):
                time.sleep(0.05)
            assert not list(attempt.glob("otlp-*.json"))
        assert server.received == []


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "http/json"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "novalue"}, "OTEL_EXPORTER_OTLP_HEADERS"),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere.pem"}, "/nowhere.pem"),
        ({"TRACEKIT_OTLP": "often"}, "often"),
    ],
)
def test_an_environment_that_cannot_be_meant_is_one_line_and_the_job_runs(
    tmp_path: Path, environ: dict[str, str], words: str
) -> None:
    with live(tmp_path, "http://127.0.0.1:1", environ, steps=2) as job:
        _, err = job.process.communicate(timeout=OVER_S)
    assert job.process.returncode == 0
    (line,) = err.splitlines()
    assert words in line
