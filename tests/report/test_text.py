"""The text report: what a tired person needs, in the order in which they need it."""

from __future__ import annotations

import gettext
import re

import pytest

from tests.analysis.telling import workers
from tracekit import report
from tracekit.analysis import Analysis, analyze
from tracekit.findings import Words, say, words
from tracekit.testing import RunBuilder


def analysis_of(run: RunBuilder) -> Analysis:
    with run.engine() as engine:
        return analyze(engine)


@pytest.fixture(scope="module")
def slow() -> Analysis:
    run = RunBuilder(jitter=0.05, batchnorm=True)
    run.steps(60, data={2: 22})
    return analysis_of(run)


def test_the_first_line_says_symptom_and_phase(slow: Analysis) -> None:
    assert report.text(slow).splitlines()[0] == "SLOW in training"


def test_the_verdict_comes_before_all_numbers(slow: Analysis) -> None:
    text = report.text(slow)
    verdict = "Rank 2 makes the others wait"
    assert text.index(verdict) < text.index("compute")
    assert "waits 20." in text
    assert "next compare rank 2's loader" in text
    assert text.index("Where a step goes") < text.index("Ranks, ms")


def test_the_rank_is_marked_in_the_table(slow: Analysis) -> None:
    (line,) = [line for line in report.text(slow).splitlines() if "◀" in line]
    assert line.split()[0] == "2"


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(slow: Analysis, width: int) -> None:
    assert max(map(len, report.text(slow, width=width).splitlines())) <= width


def test_color_is_only_there_when_asked_for(slow: Analysis) -> None:
    assert "\x1b[" not in report.text(slow)
    assert "\x1b[" in report.text(slow, color=True)


def test_a_healthy_run_is_told_in_one_sentence() -> None:
    run = RunBuilder(jitter=0.05)
    run.steps(40)
    text = report.text(analysis_of(run))
    assert text.splitlines()[0] == "HEALTHY in training"
    assert "No rank lags, nothing stands out." in text


def test_of_many_ranks_the_table_shows_those_that_matter() -> None:
    run = RunBuilder(world_size=40, jitter=0.05)
    run.steps(60, forward={17: 30})
    text = report.text(analysis_of(run))
    assert re.search(r"^ +17 .*◀ forward", text, re.M)
    assert "32 more ranks" in text


def test_a_hang_says_where_the_rank_is() -> None:
    run = RunBuilder()
    run.steps(30)
    run.hang(3)
    text = " ".join(report.text(analysis_of(run)).split())
    assert text.startswith("HANG in training")
    assert "Rank 3 never came to all_reduce 31 of group 0, in which ranks 0-2 wait" in text
    assert "at /job/train.py:42 forward" in text


def test_every_template_takes_its_values_by_name() -> None:
    for key, template in words.WORDS.items():
        assert not re.search(r"\{\d*\}", template), key


def test_words_are_english_and_remember_how_they_were_made() -> None:
    text = say("lagging.crash", rank=3)
    assert text == "rank 3, which ended"
    assert (text.template, text.values) == ("rank {rank}, which ended", {"rank": 3})


def test_a_translation_is_looked_up_by_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    class German(gettext.NullTranslations):
        def gettext(self, message: str) -> str:
            return {"rank {rank}, which ended": "Rang {rank}, der endete"}.get(message, message)

    monkeypatch.setattr(gettext, "translation", lambda *_, **__: German())
    translate = words.translator("de")
    assert translate(say("lagging.crash", rank=3)) == "Rang 3, der endete"
    assert translate("as it is") == "as it is"
    nested = Words("why: {cause}", {"cause": say("lagging.crash", rank=1)})
    assert translate(nested) == "why: Rang 1, der endete"


def test_one_line_says_with_what_the_ranks_trained() -> None:
    run = workers()
    begin = run.spans[0]["start_ns"] + 5
    for rank in range(2):
        run.collective(
            rank, "all_reduce", 1, begin, begin + 5, group="tf-1", lane="group:tf-1", step=0
        )
    text = " ".join(report.text(analysis_of(run)).split())
    assert (
        "trained by MultiWorkerMirroredStrategy · 2 replicas on 2 workers · 2 CPU · collectives by"
        " RING (seen on the host) · tensorflow 2.21.0 · tf_keras 2.21.0" in text
    )


def test_ranks_that_tell_nothing_have_no_such_line() -> None:
    run = RunBuilder(jitter=0.05)
    run.steps(40)
    assert "trained by" not in report.text(analysis_of(run))
