"""Findings from dumps of Flight Recorder, beside what a run's own records show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.basis.tables import Overview
from tracekit.analysis.options import Options
from tracekit.analysis.post_mortem.claims import Mortem
from tracekit.analysis.post_mortem.disagreements import mismatch
from tracekit.analysis.post_mortem.dump_rows import Dumps, Part, read_dumps
from tracekit.analysis.post_mortem.dump_shapes import Exchange, parting
from tracekit.analysis.post_mortem.dumps import Accused, Verdict, Wait, judge_dumps
from tracekit.dataset.engine import Engine
from tracekit.findings import Certainty, Finding, Severity, Words, ranks_words, say, waiting_words

__all__ = ["dump_story"]

_FIRST_CALLS = 8
"""Calls of one group that a job makes before it trains."""
_PAIRS = 4
"""Pairs of ranks that a sentence names."""
_MOST = 20
"""Files that a finding names."""


def dump_story(engine: Engine, seen: Overview, facts: Facts, options: Options) -> Mortem:
    """What became of the job by its dumps alone."""
    dumps = read_dumps(engine, seen.attempt)
    if dumps is None:
        return Mortem(None)
    verdict = judge_dumps(dumps, options.stall_ended_s)
    findings = tuple(_findings(verdict, dumps, facts))
    if not findings:
        absent = sorted({r for ranks in dumps.members.values() for r in ranks} - {*dumps.standing})
        return Mortem("abnormal", (_no_dump(absent),)) if absent else Mortem(None)
    if all(finding.severity is Severity.INFO for finding in findings):
        return Mortem(None, findings)
    wait = _wait(verdict)
    return Mortem(
        "hang",
        findings,
        tuple(one.rank for one in verdict.accused),
        wait.waiting if wait is not None else (),
        _call(wait, dumps) if wait is not None else None,
        phase="startup" if dumps.calls() <= _FIRST_CALLS else "training",
    )


def _wait(verdict: Verdict) -> Wait | None:
    waits = [one.wait for one in verdict.accused if one.wait is not None]
    waits = waits or verdict.untold or verdict.cycle
    return max(waits, key=lambda wait: len(wait.waiting), default=None)


def _findings(verdict: Verdict, dumps: Dumps, facts: Facts) -> Iterator[Finding]:
    for (group, seq), said, parts in verdict.mismatches:
        yield _mismatch(group, seq, said, parts, dumps)
    for exchange in verdict.exchanges:
        yield _exchange(exchange, dumps)
    for together in _alike(verdict.accused):
        yield _accused(together, verdict, dumps, facts)
    for wait in verdict.untold:
        yield _untold(wait, verdict, dumps)
    if verdict.alone is not None:
        yield _alone(verdict.alone, verdict, dumps)
    if verdict.cycle:
        yield _cycle(verdict, dumps)
    if verdict.all_in:
        yield _all_in(verdict, dumps)


def _alike(accused: Sequence[Accused]) -> list[list[Accused]]:
    """Ranks that the same is said of, together."""
    found: dict[object, list[Accused]] = {}
    for one in accused:
        stuck = (one.behind.group, one.behind.seq) if one.behind else None
        alone = one.rank if one.wait is None and stuck is None else None
        key = (one.wait and (one.wait.group, one.wait.seq), stuck, one.last, one.persists, alone)
        found.setdefault(key, []).append(one)
    return list(found.values())


def _accused(together: list[Accused], verdict: Verdict, dumps: Dumps, facts: Facts) -> Finding:
    accused = together[0]
    ranks = tuple(one.rank for one in together)
    rank, wait, behind = accused.rank, accused.wait, accused.behind
    values: dict[str, object] = {"ranks": ranks_words(ranks)}
    evidence: dict[str, object] = {}
    if wait is not None:
        last = accused.last
        values |= {
            "call": _call(wait, dumps), "waiting": waiting_words(wait.waiting),
            "since": _time(wait.since_ns),
            "last": say("hang.dump.number", seq=last) if last else say("hang.dump.none"),
        }  # fmt: skip
        evidence |= _evidence(wait, verdict) | {"last_enqueued": last}
    if behind is not None:
        values |= {"stuck": _part_words(behind, dumps), "ended": ranks_words(accused.ended_by)}
        evidence |= {
            "behind": {"op": behind.op, "group": behind.group, "seq": behind.seq},
            "ended_by": list(accused.ended_by),
            "user_frame": behind.frame,
        }
        values.setdefault("since", _time(behind.start_ns))
        evidence.setdefault("waiting_since_ns", behind.start_ns)
    key = "absent_behind" if wait and behind else "behind" if behind else "absent"
    if wait is None and behind is None:
        key = "messages"
        peers = sorted({p.rank for p in dumps.parts if p.is_open and p.peer == rank})
        since = min(p.start_ns for p in dumps.parts if p.is_open and p.peer == rank)
        values |= {"waiting": waiting_words(peers), "since": _time(since)}
        evidence |= {"waiting_ranks": peers, "waiting_since_ns": since}
    return Finding(
        "hang.missing_rank",
        Severity.CRITICAL,
        Certainty.PROVEN if accused.persists else Certainty.LIKELY,
        say(f"hang.dump.{key}", **values),
        ranks=ranks,
        lost_ms=1e3 * verdict.age_s if verdict.age_s else 0.0,
        evidence={
            **evidence,
            "last_frames": {str(r): dumps.frames[r] for r in ranks[:_MOST] if r in dumps.frames},
            "files": [dumps.files[r] for r in ranks[:_MOST]],
        },
        advice=tuple(_advice(accused, dumps, facts)),
    )


def _advice(accused: Accused, dumps: Dumps, facts: Facts) -> Iterator[Words]:
    rank, host = accused.rank, facts.of(accused.rank).host or "its host"
    if accused.behind is not None:
        yield say("advice.dump.device", rank=rank, host=host)
    else:
        if rank in dumps.frames:
            yield say("advice.code_there", frame=dumps.frames[rank])
        yield say("advice.dump.where", rank=rank, host=host)
    if not accused.persists:
        yield say("advice.dump.twice")


def _no_dump(absent: Sequence[int]) -> Finding:
    """Nobody is seen waiting, but not everybody is seen."""
    ranks = ranks_words(absent)
    return Finding(
        "coverage.partial",
        Severity.WARNING,
        Certainty.CANNOT_TELL,
        say("coverage.partial.dumps", ranks=ranks),
        ranks=tuple(absent),
        evidence={"no_dump": list(absent)},
        advice=(say("advice.dump.fetch", ranks=ranks),),
    )


def _untold(wait: Wait, verdict: Verdict, dumps: Dumps) -> Finding:
    without = [rank for rank in wait.untold if rank not in dumps.standing]
    ranks = ranks_words(without or wait.untold)
    return Finding(
        "hang.missing_rank",
        Severity.CRITICAL,
        Certainty.CANNOT_TELL,
        say(
            "hang.dump.no_dump" if without else "hang.dump.no_word", ranks=ranks,
            call=_call(wait, dumps), waiting=waiting_words(wait.waiting),
            since=_time(wait.since_ns),
        ),
        evidence={
            **_evidence(wait, verdict), "no_dump": without,
            "candidates": list(wait.untold),
        },
        advice=(say("advice.dump.fetch", ranks=ranks),),
    )  # fmt: skip


def _mismatch(
    group: str, seq: int, said: dict[str, tuple[int, ...]], parts: tuple[Part, ...], dumps: Dumps
) -> Finding:
    evidence = {
        "open_on": sorted(part.rank for part in parts if part.is_open),
        "user_frames": {str(part.rank): part.frame for part in parts if part.frame},
        "files": [part.source for part in parts][:_MOST],
    }
    return mismatch(group, dumps.names.get(group, group), seq, said, evidence)


def _exchange(exchange: Exchange, dumps: Dumps) -> Finding:
    """What is sent is not what is expected: of a pair either may be wrong."""
    parts = exchange.parts
    if exchange.pairs:
        ranks = sorted(
            {rank for sender, receiver, _, _ in exchange.pairs for rank in (sender, receiver)}
        )
        what = "; ".join(
            say("hang.dump.pair", sender=sender, receiver=receiver, sent=sent, received=received)
            for sender, receiver, sent, received in exchange.pairs[:_PAIRS]
        )
    else:
        ranks = sorted(part.rank for part in parts)
        what = say("hang.dump.sums", sent=exchange.sent, received=exchange.received)
    empty = {
        side: sorted(p.rank for p in parts if not sum(getattr(p, side) or ()))
        for side in ("sent", "received")
    }
    nothing = [
        say(f"hang.dump.nothing_{side}", ranks=ranks_words(some))
        for side, some in empty.items()
        if some and len(some) < len(parts)
    ]
    return Finding(
        "hang.mismatch",
        Severity.CRITICAL,
        Certainty.PROVEN,
        say("hang.dump.exchange", call=_part_words(parts[0], dumps),
            parts="; ".join([what, *nothing])),
        ranks=tuple(ranks),
        evidence={
            "class": "sizes",
            "group": exchange.group,
            "seq": exchange.seq,
            "pairs": [
                {"from": sender, "to": receiver, "sent": sent, "expected": received}
                for sender, receiver, sent, received in exchange.pairs[:_MOST]
            ],
            "sent": {str(p.rank): sum(p.sent or ()) for p in parts[:_MOST]},
            "expected": {str(p.rank): sum(p.received or ()) for p in parts[:_MOST]},
            "user_frames": {str(p.rank): p.frame for p in parts[:_MOST] if p.frame},
            "files": [p.source for p in parts[:_MOST]],
        },
        advice=(say("advice.exchange"),),
    )  # fmt: skip


def _alone(wait: Wait, verdict: Verdict, dumps: Dumps) -> Finding:
    frames = {str(r): dumps.frames[r] for r in wait.absent[:_MOST] if r in dumps.frames}
    sites = parting(wait, dumps)
    told: dict[str, object] = {
        "rank": wait.waiting[0], "call": _call(wait, dumps), "since": _time(wait.since_ns),
        "ranks": ranks_words(wait.absent),
    }  # fmt: skip
    evidence: dict[str, object] = {**_evidence(wait, verdict), "last_frames": frames}
    if sites is not None:
        told |= {"seq": sites.seq, "own": sites.own, "others": sites.others}
        evidence["call_sites"] = {"seq": sites.seq, "own": sites.own, "others": sites.others}
    return Finding(
        "hang.missing_rank",
        Severity.CRITICAL,
        Certainty.CANNOT_TELL,
        say("hang.dump.alone" if sites is None else "hang.dump.alone_parted", **told),
        ranks=wait.waiting,
        evidence=evidence,
        advice=(say("advice.branch"), say("advice.log.all")),
    )  # fmt: skip


def _cycle(verdict: Verdict, dumps: Dumps) -> Finding:
    waits = verdict.cycle
    parts = "; ".join(
        say("hang.dump.part", ranks=ranks_words(wait.waiting), what=_call(wait, dumps))
        for wait in waits[:8]
    )
    ranks = tuple(sorted({rank for wait in waits for rank in wait.absent}))
    evidence = {"waits": [_evidence(wait, verdict) for wait in waits[:_MOST]]}
    if not verdict.closed:
        return Finding(
            "hang.missing_rank",
            Severity.CRITICAL,
            Certainty.CANNOT_TELL,
            say("hang.dump.elsewhere", ranks=ranks_words(ranks), parts=parts),
            evidence=evidence,
            advice=(say("advice.dump.where", rank=ranks[0], host="its host"),),
        )
    return Finding(
        "hang.cycle",
        Severity.CRITICAL,
        Certainty.LIKELY,
        say("hang.dump.cycle", parts=parts),
        ranks=ranks,
        evidence=evidence,
        advice=(say("advice.branch"),),
    )


def _all_in(verdict: Verdict, dumps: Dumps) -> Finding:
    """Nobody is missing. It is a hang where it was seen twice, or given up by the watchdog."""
    wait = max(verdict.all_in, key=lambda one: (len(one.waiting), -one.since_ns))
    given_up = any(part.retired and part.is_open for part in dumps.parts)
    hangs = given_up or wait.dumps > 1
    return Finding(
        "hang.missing_rank",
        Severity.WARNING if hangs else Severity.INFO,
        Certainty.CANNOT_TELL,
        say("hang.dump.all_in", call=_call(wait, dumps), since=_time(wait.since_ns)),
        evidence=_evidence(wait, verdict),
        advice=(say("advice.network") if hangs else say("advice.dump.twice"),),
    )


def _evidence(wait: Wait, verdict: Verdict) -> dict[str, object]:
    return {
        "collective": {"op": wait.op, "group": wait.group, "seq": wait.seq},
        "waiting_ranks": list(wait.waiting),
        "missing_ranks": list(wait.absent),
        "no_dump": list(wait.untold),
        "waiting_since_ns": wait.since_ns,
        "seconds": round(verdict.age_s, 3) if verdict.age_s is not None else None,
        "waiting_frame": wait.frame,
        "dumps": wait.dumps,
    }


def _call(wait: Wait, dumps: Dumps) -> Words:
    group = dumps.names.get(wait.group, wait.group)
    return Words("{op} {seq} of group {group}", {"op": wait.op, "seq": wait.seq, "group": group})


def _part_words(part: Part, dumps: Dumps) -> Words:
    group = dumps.names.get(part.group, part.group)
    return Words("{op} {seq} of group {group}", {"op": part.op, "seq": part.seq, "group": group})


def _time(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns / 1e9, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
