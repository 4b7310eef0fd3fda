"""Hangs that really happen here, on gloo: each is told from the run's journals alone, from dumps
alone where they hold the evidence, and from both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.adapters.flight_recorder.samples import hangs, verdict
from tracekit.analysis import Analysis, analyze
from tracekit.cli._dumps import add_dumps
from tracekit.dataset import DuckDB, open_run
from tracekit.findings import Certainty

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
DUMPS_OF = {
    "missing": (0, 1, 2),
    "order": (0, 1, 2),
    "size": (1, 2),  # gloo aborts rank 0, which gets more than it has room for
    "save": (0, 1, 2),
    "uneven": (0, 1, 2),
    "killed": (0, 2),
    "stopped": (0, 2),
    "gil": (0, 2),
    "healthy": (0, 1, 2),
}
"""The jobs and the ranks that can still write a dump."""


class Hangs:
    """Where the runs and the dumps of the jobs are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def dumps(self, kind: str, format_: str = "pickle") -> Path:
        return self.folder / f"{kind}.dumps" / format_

    def pulled(self, kind: str) -> list[Path]:
        """The dumps for which the agent asked."""
        return sorted((self.folder / kind / "attempt-000" / "flight_recorder").glob("*"))

    def from_journals(self, kind: str) -> Analysis:
        return self._analyzed(kind, with_dumps=False)

    def from_both(self, kind: str) -> Analysis:
        return self._analyzed(kind, with_dumps=True)

    def _analyzed(self, kind: str, with_dumps: bool) -> Analysis:
        with open_run(self.folder / kind) as run, DuckDB() as engine:
            if with_dumps:
                assert add_dumps(run) == []
            for name, source in run.sources.items():
                engine.register(name, source)
            return analyze(engine, run.coverage)

    # What has to have happened

    def all_hang(self) -> bool:
        return all(
            (self.folder / f"{kind}.{rank}.hangs").exists()
            for kind, ranks in DUMPS_OF.items()
            for rank in {*ranks, 1}
        )

    def all_looked_at(self) -> bool:
        """Whether the agents have taken what they take of each rank that lives."""
        for kind, ranks in DUMPS_OF.items():
            attempt = self.folder / kind / "attempt-000"
            alive = {*ranks, 1} if kind != "killed" else {*ranks}
            for rank in alive:
                files = [*attempt.glob(f"ranks/rank-{rank:05d}.*.stacks.json")]
                if len(files) != 1 or len(json.loads(files[0].read_text())) < 2:
                    return False
            if len(self.pulled(kind)) < len(ranks):
                return False
        return True

    def all_dumped(self) -> bool:
        return all(
            (self.dumps(kind, format_) / f"look-{number}" / f"dump_rank_{rank}").exists()
            for kind, ranks in DUMPS_OF.items()
            for rank in ranks
            for format_ in ("pickle", "json")
            for number in (1, 2)
        )


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hangs]:
    """All jobs, hanging, dumped twice by hand and once by their agents; they end with the module.

    Nothing here is a matter of time: a rank is dumped when all ranks of all jobs hang.
    """
    found = Hangs(tmp_path_factory.mktemp("hangs"))
    script = Path(__file__).with_name("hangs.py")
    with subprocess.Popen(
        [sys.executable, script, found.folder, *DUMPS_OF],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            until(found.all_hang, process)
            until(found.all_looked_at, process)
            for number in (1, 2):
                (found.folder / f"look-{number}").touch()
            until(found.all_dumped, process)
            yield found
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
    until(lambda: not agents(found.folder))


def until(
    what: Callable[[], bool], process: subprocess.Popen[bytes] | None = None, within_s: float = 200
) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert process is None or process.poll() is None, "the jobs ended"
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.2)


def agents(folder: Path) -> list[Path]:
    """The agents that serve runs in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if b"tracekit.agent" in command and os.fsencode(folder) in command:
            found.append(path)
    return found


def named(analysis: Analysis) -> dict[str, tuple[int, ...]]:
    return {id_: ranks for id_, ranks, _ in hangs(analysis)}


@pytest.mark.parametrize("kind", DUMPS_OF)
def test_nobody_but_the_guilty_is_accused_however_it_is_looked_at(jobs: Hangs, kind: str) -> None:
    # Of two sides that disagree both are told where neither is larger.
    involved = {"size": {1, 2}}.get(kind, {1})
    for analysis in (jobs.from_journals(kind), verdict(jobs.dumps(kind)), jobs.from_both(kind)):
        for id_, ranks, _ in hangs(analysis):
            assert set(ranks) <= involved, (id_, ranks)


@pytest.mark.parametrize("format_", ["pickle", "json"])
def test_dumps_name_who_never_came_and_two_looks_prove_it(jobs: Hangs, format_: str) -> None:
    twice = verdict(jobs.dumps("missing", format_))
    once = verdict(jobs.dumps("missing", format_) / "look-2")
    assert hangs(twice) == [("hang.missing_rank", (1,), "proven")]
    assert hangs(once) == [("hang.missing_rank", (1,), "likely")]
    if format_ == "pickle":
        (frame,) = once.findings[0].evidence["last_frames"].values()
        assert "hangs.py:" in frame


def test_journals_name_who_never_came_with_where_it_is(jobs: Hangs) -> None:
    for analysis in (jobs.from_journals("missing"), jobs.from_both("missing")):
        assert named(analysis) == {"hang.missing_rank": (1,)}
        assert "forget_to_call" in analysis.findings[0].evidence["user_frame"]


def test_another_order_is_told_each_way(jobs: Hangs) -> None:
    assert hangs(verdict(jobs.dumps("order"))) == [("hang.mismatch", (1,), "proven")]
    for analysis in (jobs.from_journals("order"), jobs.from_both("order")):
        assert hangs(analysis) == [("hang.mismatch", (1,), "proven")]
        assert "rank 1 in broadcast" in analysis.findings[0].title


@pytest.mark.parametrize("format_", ["pickle", "json"])
def test_another_size_is_told_though_a_rank_aborts(jobs: Hangs, format_: str) -> None:
    (found,) = hangs(verdict(jobs.dumps("size", format_)))
    assert (found[0], found[2]) == ("hang.mismatch", "proven")
    assert 1 in found[1]
    for analysis in (jobs.from_journals("size"), jobs.from_both("size")):
        (finding,) = (one for one in analysis.findings if one.id == "hang.mismatch")
        assert (finding.ranks, finding.certainty) == ((1,), Certainty.PROVEN)
        assert "16,384 bytes" in finding.title


def test_who_is_in_a_long_save_is_named_with_it(jobs: Hangs) -> None:
    for analysis in (jobs.from_journals("save"), jobs.from_both("save")):
        ((id_, ranks),) = named(analysis).items()
        assert (id_, ranks) in [("hang.busy_rank", (1,)), ("hang.missing_rank", (1,))]
        assert analysis.findings[0].evidence["inside"] == "torch.save"
    # Dumps cannot tell what it does instead.
    assert hangs(verdict(jobs.dumps("save"))) == [("hang.missing_rank", (1,), "proven")]


def test_who_had_a_batch_less_is_told_each_way(jobs: Hangs) -> None:
    assert hangs(verdict(jobs.dumps("uneven"))) == [("hang.mismatch", (1,), "proven")]
    for analysis in (jobs.from_journals("uneven"), jobs.from_both("uneven")):
        assert hangs(analysis) == [("hang.mismatch", (1,), "proven")]
        assert "rank 1 in barrier" in analysis.findings[0].title


def test_who_was_killed_is_named_by_its_journal_and_dumps_cannot_tell(jobs: Hangs) -> None:
    for analysis in (jobs.from_journals("killed"), jobs.from_both("killed")):
        (found,) = [one for one in analysis.findings if one.id.startswith("crash.")]
        assert (found.id, found.ranks) == ("crash.vanished", (1,))
    alone = verdict(jobs.dumps("killed"))
    assert alone.symptom != "healthy"
    assert [one for one in hangs(alone) if one[1]] == []
    assert any("no dump of rank 1: cannot tell" in one.title for one in alone.findings)


@pytest.mark.parametrize(("kind", "id_"), [("stopped", "hang.stopped"), ("gil", "hang.gil")])
def test_who_cannot_answer_is_named_by_its_journal_and_dumps_cannot_tell(
    jobs: Hangs, kind: str, id_: str
) -> None:
    assert named(jobs.from_journals(kind)) == named(jobs.from_both(kind)) == {id_: (1,)}
    alone = verdict(jobs.dumps(kind))
    assert hangs(alone) == [("hang.missing_rank", (), "cannot_tell")]
    assert "no dump of rank 1" in alone.findings[0].title


def test_a_job_that_waits_for_nobody_is_no_hang(jobs: Hangs) -> None:
    for analysis in (jobs.from_journals("healthy"), verdict(jobs.dumps("healthy"))):
        assert hangs(analysis) == []
    assert hangs(jobs.from_both("healthy")) == []


@pytest.mark.parametrize("kind", DUMPS_OF)
def test_the_agent_has_asked_who_can_answer_once(jobs: Hangs, kind: str) -> None:
    pulled = jobs.pulled(kind)
    assert [int(path.name[5:10]) for path in pulled] == list(DUMPS_OF[kind])
    assert all(path.read_bytes()[:1] == b"\x80" for path in pulled)
    assert not [*(jobs.folder / kind / "attempt-000" / "journal").glob("*.ring")]
