"""``tracekit export --to otlp`` sends a run or says in one line why not."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Call, make_run
from tests.exporters.otlp.readback import ReadSpan, spans_of
from tests.exporters.otlp.server import OtlpServer, Reply, partial
from tests.exporters.runs import write_run
from tracekit.exporters import otlp
from tracekit.testing.builder import RunBuilder


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(otlp, "FIRST_GIVE_UP_S", 0.1)


def received(server: OtlpServer) -> list[ReadSpan]:
    return [span for one in server.received for span in spans_of(one.message)]


def straggling(tmp_path: Path) -> Path:
    built = RunBuilder(4, jitter=0.02)
    built.steps(30, forward={2: 25.0})
    return write_run(built, tmp_path / "run")


def test_a_run_is_sent_to_where_the_option_says(call: Call, tmp_path: Path) -> None:
    with OtlpServer() as server:
        done = call("export", make_run(tmp_path), "--to", "otlp", "--endpoint", server.endpoint)
        spans = received(server)
    assert (done.code, done.out) == (0, "")
    assert f"{len(spans)} spans of 3 steps sent to {server.endpoint}/v1/traces" in done.line
    assert {span.name for span in spans} >= {"step", "train_step", "train_run"}


def test_or_the_environment(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpServer() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.endpoint + "/base")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        done = call("export", make_run(tmp_path), "--to", "otlp", "--steps", "1:1")
        (one,) = server.received
    assert done.code == 0
    assert (one.path, one.headers["x-key"]) == ("/base/v1/traces", "a b")
    assert {span.resource["service.name"] for span in spans_of(one.message)} == {"mine"}
    assert {span.attributes["dl.iteration"] for span in spans_of(one.message)} == {1}


def test_the_straggler_that_the_analysis_names_is_marked(call: Call, tmp_path: Path) -> None:
    with OtlpServer() as server:
        run = straggling(tmp_path)
        done = call("export", run, "--to", "otlp", "--endpoint", server.endpoint, "--steps", "9:9")
        marked = [
            (span.resource["dl.rank"], span.attributes["tracekit.straggler_cause"])
            for span in received(server)
            if span.attributes.get("tracekit.straggler")
        ]
    assert done.code == 0
    assert marked == [(2, "forward")]


def test_hosts_whose_clocks_can_be_compared_are_aligned(call: Call, tmp_path: Path) -> None:
    built = RunBuilder(4, hosts=("a", "b"), jitter=0.1, transfer=0.2)
    built.steps(60)
    for row in built.spans:
        row["start_ns"] += 40_000_000 * (row["rank"] // 2)
    run = write_run(built, tmp_path / "run")
    with OtlpServer() as server:
        done = call("export", run, "--to", "otlp", "--endpoint", server.endpoint)
        reduced = [span for span in received(server) if span.name == "all_reduce"]
    assert done.code == 0
    assert all("tracekit.wait_ns" in span.attributes for span in reduced)
    offsets = {span.resource.get("tracekit.clock.offset_ns") for span in reduced}
    assert offsets - {None}
    assert all(abs(int(str(one)) + 40_000_000) < 2_000_000 for one in offsets - {None})
    done = call("export", run, "--to", "chrome", "-o", tmp_path / "trace.json")
    assert done.code == 0
    assert "offsets are not known" not in done.err


def test_now_moves_the_end_of_the_run_to_now(call: Call, tmp_path: Path) -> None:
    before = time.time_ns()
    file = tmp_path / "run.jsonl"
    assert call("export", straggling(tmp_path), "--to", "otlp-json", "--now", "-o", file).code == 0
    ends = [
        int(span["endTimeUnixNano"])
        for line in file.read_bytes().splitlines()
        for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ]
    assert before <= max(ends) <= time.time_ns()


def test_what_the_server_rejects_is_said(call: Call, tmp_path: Path) -> None:
    with OtlpServer(Reply(body=partial(3, "too old"))) as server:
        done = call("export", make_run(tmp_path), "--to", "otlp", "--endpoint", server.endpoint)
    assert done.code == 0
    assert "3 of them were rejected: too old" in done.err


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(400, body=b"bad tenant"), "400"),
        (Reply(302, headers={"Location": "http://x/"}), "302"),
    ],
)
def test_a_server_that_refuses_is_named_with_its_words(
    call: Call, tmp_path: Path, reply: Reply, words: str
) -> None:
    with OtlpServer(reply) as server:
        done = call("export", make_run(tmp_path), "--to", "otlp", "--endpoint", server.endpoint)
    assert done.code == 2
    assert done.line.startswith(f"tracekit: {server.endpoint}/v1/traces: ")
    assert words in done.line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--endpoint", "http://127.0.0.1:1"], "http://127.0.0.1:1/v1/traces: "),
        (["--endpoint", "localhost:4318"], "has no scheme"),
        (["--endpoint", "ftp://localhost"], "ftp"),
        (["--endpoint", "http://localhost", "-o", "x"], "--to otlp-json writes one"),
        (["--endpoint", "http://localhost", "--per-rank"], "--to perfetto"),
        (["--steps", "7:9"], "the run has steps 0:2"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    call: Call, tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = call("export", make_run(tmp_path), "--to", "otlp", *arguments)
    assert done.code == 2
    assert words in done.line


def test_a_file_has_a_line_for_every_rank_of_a_trace(call: Call, tmp_path: Path) -> None:
    done = call("export", make_run(tmp_path), "--to", "otlp-json", "--steps", "2:2")
    assert done.code == 0
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert len(lines) == 3  # the root, and two ranks
    spans = [span for line in lines for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    assert len({span["traceId"] for span in spans}) == 1
    assert f"{len(spans)} spans of 1 step\n" in done.err
