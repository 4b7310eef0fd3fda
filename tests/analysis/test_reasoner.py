"""Claims of several sources are settled to one verdict; their order changes nothing."""

from __future__ import annotations

from random import Random

import pytest

from tracekit.analysis.post_mortem.claims import Claim, Mortem
from tracekit.analysis.post_mortem.reasoner import Settled, next_steps, settle
from tracekit.findings import Certainty, Finding, Severity, say
from tracekit.findings.causes import CAUSES

SOURCES = ("journal", "kernel", "scheduler", "logs", "dumps", "nccl")
PROVEN, LIKELY, CANNOT = Certainty


def claim(
    cause: str, *ranks: int, source: str = "logs", sure: Certainty = LIKELY, **evidence: object
) -> Claim:
    id_ = CAUSES[cause].ids[0]
    title = say("story.names", source=say(f"story.{source}"), title=f"{cause} {ranks}")
    finding = Finding(
        id_, Severity.CRITICAL, sure, title, ranks=ranks, evidence=evidence,
        advice=(say("advice.error"),),
    )  # fmt: skip
    symptom = "hang" if id_.startswith("hang.") else "crash"
    return Claim(source, cause, Mortem(symptom, (finding,), ranks if sure is not CANNOT else ()))


def settled(*claims: Claim) -> Settled:
    found = settle(claims)
    assert found is not None
    return found


def test_nothing_claimed_is_nothing_told() -> None:
    assert settle([]) is None


def test_a_cause_and_its_effects_are_one_finding() -> None:
    found = settled(
        claim("timed_out", sure=CANNOT),
        claim("killed_oom", 2, source="kernel", sure=PROVEN, source_line="dmesg:1"),
        claim("rank_missing", 2, source="dumps"),
        claim("closed", 0, source="nccl"),
    )
    assert (found.primary.cause, len(found.told.findings)) == ("killed_oom", 1)
    assert [one.cause for one in found.agreeing] == ["rank_missing"]
    assert {one.cause for one in found.effects} == {"timed_out", "closed"}
    assert "too" in found.told.findings[0].title


def test_a_surer_claim_about_another_rank_is_told_against_the_verdict() -> None:
    found = settled(
        claim("rank_busy", 3, source="journal", sure=PROVEN),
        claim("rank_missing", 2, source="dumps", sure=LIKELY),
    )
    finding = found.told.findings[0]
    assert (found.primary.cause, finding.certainty) == ("rank_busy", LIKELY)
    assert "rank_missing (2,)" in finding.title
    assert found.told.culprits == (3,)


def test_two_hangs_that_are_equally_sure_are_undecided_and_nobody_is_named() -> None:
    found = settled(
        claim("rank_missing", 3, source="journal", sure=PROVEN),
        claim("rank_missing", 2, source="dumps", sure=PROVEN),
    )
    assert found.told.findings[0].certainty is CANNOT
    assert found.told.culprits == ()


def test_one_of_several_silent_ranks_is_no_contradiction() -> None:
    found = settled(
        claim("rank_busy", 3, source="journal", sure=PROVEN),
        claim("rank_missing", 2, 3, source="logs", sure=LIKELY),
    )
    assert (found.against, found.told.findings[0].certainty) == ((), PROVEN)


def test_who_complains_of_a_link_does_not_speak_against_a_death() -> None:
    found = settled(
        claim("killed_signal", 2, source="journal", sure=PROVEN),
        claim("net_retry", 1, source="nccl", sure=LIKELY),
    )
    assert (found.primary.cause, found.against) == ("killed_signal", ())


def test_who_aborts_after_waiting_is_a_victim_and_who_was_waited_for_is_not() -> None:
    aborted = claim("aborted", 0, source="journal", sure=PROVEN)
    for cause, ranks in (("rank_missing", (2,)), ("mismatch", (0, 1)), ("timed_out", ())):
        sure = LIKELY if ranks else CANNOT
        assert settled(aborted, claim(cause, *ranks, source="dumps", sure=sure)).primary.cause == (
            cause
        )
    own = settled(aborted, claim("rank_missing", 0, source="dumps", sure=PROVEN))
    assert own.primary.cause == "aborted"


@pytest.mark.parametrize(("reason", "cause"), [("time limit", "rank_missing"),
                                               ("preempted", "scheduler")])  # fmt: skip
def test_a_time_limit_ends_what_hung_and_a_preemption_does_not(reason: str, cause: str) -> None:
    found = settled(
        claim("scheduler", source="scheduler", sure=PROVEN, reason=reason),
        claim("rank_missing", 2, source="dumps", sure=LIKELY),
    )
    assert found.primary.cause == cause


@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_claimed_the_order_is_nothing_and_never_two_are_sure(seed: int) -> None:
    random = Random(seed)
    claims = [
        claim(
            random.choice(list(CAUSES)), *sorted(random.sample(range(4), random.randint(0, 2))),
            source=random.choice(SOURCES), sure=random.choice(list(Certainty)),
        )
        for _ in range(random.randint(1, 6))
    ]  # fmt: skip
    first = settled(*claims)
    for _ in range(5):
        random.shuffle(claims)
        assert settled(*claims) == first
    for other in first.against:
        assert first.told.findings[0].certainty is not PROVEN
        assert any(other.told.findings[0].title in str(f.title) for f in first.told.findings)
    alone = first.primary.source in ("dumps", "nccl")  # their own claims stand side by side
    assert len(first.told.findings) == 1 or alone


@pytest.mark.parametrize("cause", CAUSES)
def test_every_class_has_a_next_step(cause: str) -> None:
    assert next_steps(cause, ())
    assert all(next_steps(cause, (1, 2)))
