"""Findings about hangs and crashes: causes, never their effects."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence

from tracekit.analysis.basis.ends import End, Open, first_death
from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.options import Options
from tracekit.analysis.post_mortem.claims import Mortem
from tracekit.analysis.post_mortem.doing import doing_words, fewer, progress_evidence
from tracekit.analysis.post_mortem.saves import UnmetSave, find_unmet_save
from tracekit.analysis.post_mortem.stacks import user_frame
from tracekit.analysis.post_mortem.stalls import Culprit, Stall, find_stall, is_busy
from tracekit.findings import Certainty, Finding, Severity, Words, ranks_words, say, waiting_words
from tracekit.findings.causes import cause_of_text

__all__ = ["call_words", "post_mortem"]

_ABORT, _KILL, _TERM, _BY_OTHERS = 6, 9, 15, 8
"""Signals, and the least blame of an end that another one caused."""
_TOLD = ("launcher", "pidfd", "stacks")
_OWN_FAILURES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
"""Signals that a process gets by what it does itself, and hardly ever from others."""


def post_mortem(
    ends: Mapping[int, End], facts: Facts, median_step_ns: float | None, options: Options
) -> Mortem:
    """Tell a hang from a crash, and the cause of either from its effects."""
    death = first_death(ends, options)
    stall = find_stall(ends, facts, median_step_ns, options)
    save = find_unmet_save(ends, facts, median_step_ns, options)
    missed = save is not None and save.certainty is Certainty.PROVEN
    if stall is not None and not missed:
        return _hang(stall, ends, facts, options)
    if save is not None:
        return _unmet(save, ends)
    if death is not None:
        return _crash(death, ends, facts, options)
    return Mortem(None)


# Hangs


def _hang(stall: Stall, ends: Mapping[int, End], facts: Facts, options: Options) -> Mortem:
    call = call_words(stall.call, facts)
    waiting = ranks_words(stall.waiting)
    evidence = {
        "collective": _call_evidence(stall.call),
        "waiting_ranks": list(stall.waiting),
        "missing_ranks": list(stall.missing),
        "waiting_since_ns": stall.since_ns,
        "seconds": round(stall.seconds, 3),
    }
    lost = stall.seconds * 1e3
    if stall.kind == "missing" and stall.culprits:
        findings = tuple(
            _missing(culprit, stall, ends, facts, evidence, call) for culprit in stall.culprits
        )
    elif stall.kind == "missing":
        findings = (
            Finding(
                "hang.missing_rank", Severity.CRITICAL, Certainty.CANNOT_TELL,
                say("hang.all_in", call=call, seconds=stall.seconds), lost_ms=lost,
                evidence=evidence, advice=(say("advice.network"),),
            ),
        )  # fmt: skip
    else:
        others = "; ".join(
            say("hang.other", rank=rank, call=call_words(other, facts))
            for rank, other in sorted(stall.others.items())
        )
        evidence["others"] = {str(r): _call_evidence(o) for r, o in stall.others.items()}
        findings = (
            Finding(
                f"hang.{stall.kind}", Severity.CRITICAL, Certainty.PROVEN,
                say(f"hang.{stall.kind}", waiting=waiting, call=call, others=others),
                ranks=_apart(stall), lost_ms=lost,
                evidence=evidence, advice=(say("advice.branch"),),
            ),
        )  # fmt: skip
    culprits = tuple(culprit.rank for culprit in stall.culprits)
    return Mortem("hang", findings, culprits, stall.waiting, call, stall.call)


def _apart(stall: Stall) -> tuple[int, ...]:
    """Who is to be looked at: the ranks that differ from the largest side, where one is larger."""
    sides = Counter(call.key for call in stall.others.values())
    if stall.kind == "mismatch" and max(sides.values(), default=0) < len(stall.waiting):
        return tuple(sorted(stall.others))
    return tuple(sorted({*stall.waiting, *stall.others}))


def _missing(
    culprit: Culprit,
    stall: Stall,
    ends: Mapping[int, End],
    facts: Facts,
    evidence: Mapping[str, object],
    call: Words,
) -> Finding:
    of = facts.of(culprit.rank)
    end = ends.get(culprit.rank)
    values: dict[str, object] = {
        "rank": culprit.rank,
        "host": of.host or "its host",
        "pid": of.identity.get("pid", "PID"),
        "wchan": culprit.wchan or "unknown",
    }
    kind = "missing_rank"
    keys: tuple[str, ...] = ("stack",)
    if culprit.state == "stopped":
        kind, keys = "stopped", ("continue",)
    elif culprit.state == "gil":
        kind, keys = "gil", ("gil",)
    elif culprit.state == "disk":
        keys = ("disk", "stack")
    elif is_busy(culprit):
        kind = "busy_rank"
    if end is not None and end.state not in ("running", "stopped"):  # nothing to look at any more
        keys = ("code_there",) if culprit.frame else ("again",)
        values["frame"] = culprit.frame
    known = end is not None and (end.opened or end.last_span is not None)
    doing = doing_words(culprit, end)
    behind = fewer(end, [ends[rank] for rank in stall.waiting])
    for name, (own, others) in behind.items():
        doing = say("doing.fewer", doing=doing, name=name, own=own, others=others)
    return Finding(
        f"hang.{kind}",
        Severity.CRITICAL,
        Certainty.PROVEN if known else Certainty.LIKELY,
        say(
            f"hang.{kind}", rank=culprit.rank, call=call, waiting=waiting_words(stall.waiting),
            seconds=stall.seconds, doing=doing,
        ),
        ranks=(culprit.rank,),
        lost_ms=stall.seconds * 1e3,
        evidence={
            **evidence,
            "state": culprit.state,
            "inside": culprit.inside.name if culprit.inside else None,
            "step": culprit.inside.step if culprit.inside else None,
            "since_ns": culprit.since_ns,
            "user_frame": culprit.frame,
            "innermost_frame": culprit.deepest,
            "wchan": culprit.wchan,
            "looks": culprit.looks,
            "last_span": end.last_span if end else None,
            "counted_fewer": {name: list(counts) for name, counts in behind.items()},
            **progress_evidence(end),
        },
        advice=tuple(say(f"advice.{key}", **values) for key in keys),
    )  # fmt: skip


def _unmet(save: UnmetSave, ends: Mapping[int, End]) -> Mortem:
    """A save that some are in and others are not, without any collective that shows it."""
    call = say("call.save", name=save.opened.name)
    first = save.culprits[0]
    busy = save.kind == "busy"
    others = save.outside if busy else save.inside
    finding = Finding(
        "hang.busy_rank" if busy else "hang.missing_rank",
        Severity.CRITICAL,
        save.certainty,
        say(
            f"hang.save.{save.kind}", ranks=ranks_words([one.rank for one in save.culprits]),
            name=save.opened.name, others=ranks_words(others), waiting=waiting_words(others),
            seconds=save.seconds, doing=doing_words(first, ends.get(first.rank)),
        ),
        ranks=tuple(one.rank for one in save.culprits),
        lost_ms=save.seconds * 1e3,
        evidence={
            "save": save.opened.name,
            "waiting_ranks": list(others),
            "inside_ranks": list(save.inside),
            "outside_ranks": list(save.outside),
            "saves_before": save.before,
            "since_ns": save.since_ns,
            "seconds": round(save.seconds, 3),
            "state": first.state,
            "inside": first.inside.name if first.inside else None,
            "user_frame": first.frame,
        },
        advice=(say("advice.save.slow" if busy else "advice.save.all"),),
    )  # fmt: skip
    culprits = () if save.kind == "unsure" else finding.ranks
    return Mortem("hang", (finding,), culprits, others, call, save.opened)


# Crashes


def _crash(death: End, ends: Mapping[int, End], facts: Facts, options: Options) -> Mortem:
    bad = [end for end in ends.values() if end.is_bad]
    everyone = len(bad) == len(ends) and len(ends) > 1
    if everyone and _from_outside(bad, options):
        return Mortem("crash", (_ended(bad),))
    if len(bad) > 1 and death.blame() >= _BY_OTHERS:
        return Mortem("crash", (_lost(bad),))
    of = facts.of(death.rank)
    where = {"host": of.host or "its host", "pid": of.identity.get("pid", "PID")}
    frame = death.frame or user_frame(of.end)
    inside = _inside(death)
    if death.state == "signal" and frame:
        inside = say("inside.at", inside=inside, frame=frame)
    alike = sorted(end.rank for end in bad if end is not death and _alike(end, death))
    victims = sorted({end.rank for end in bad} - {death.rank, *alike})
    told = say("crash.victims", ranks=ranks_words(victims)) if victims else say("crash.no_victims")
    if alike:
        told = say("crash.alike", ranks=ranks_words(alike), victims=told)
    # An error of one's own is the same cause on each; of equal exit codes nobody knows.
    culprits = tuple(sorted({death.rank, *(alike if death.state == "exception" else ())}))
    waiting = tuple(r for r, end in ends.items() if end.waits_in and r not in culprits)
    evidence = {
        "class": _class(death),
        "state": death.state,
        "signal": death.signal,
        "code": death.code,
        "source": death.source,
        "error": death.error,
        "frame": frame,
        "time_ns": death.time_ns,
        "inside": death.inside.name if death.inside else None,
        "step": death.inside.step if death.inside else death.last_step,
        "last_span": death.last_span,
        "alike_ranks": alike,
        "victims": victims,
        "waiting_ranks": list(waiting),
    }
    symptom = "crash"
    if death.out_of_memory:
        symptom, id_ = "oom", "crash.oom"
        title = say(id_, rank=death.rank, inside=inside, error=death.error, victims=told)
        certainty, advice = Certainty.PROVEN, [say("advice.oom")]
    elif death.state == "signal" and death.signal and death.source in _TOLD:
        id_ = "crash.killed"
        name = _signal_name(death.signal)
        title = say(
            id_, rank=death.rank, signal=death.signal, name=name, inside=inside,
            source=say(f"source.{death.source}"), victims=told,
        )  # fmt: skip
        by_itself = name in _OWN_FAILURES
        advice = [say("advice.aborted") if by_itself else say("advice.killed", **where)]
        certainty = Certainty.PROVEN
    elif death.state == "exception":
        id_ = "crash.error"
        error = death.error or "an error"
        title = say(id_, rank=death.rank, error=error, inside=inside, victims=told)
        certainty = Certainty.PROVEN if death.blame() < _BY_OTHERS else Certainty.LIKELY
        advice = [say("advice.error")] if victims else []
    elif death.state == "exit":
        id_ = "crash.error"
        title = say("crash.exit", rank=death.rank, code=death.code, inside=inside, victims=told)
        certainty, advice = Certainty.LIKELY, [say("advice.vanished", **where)]
    else:
        id_ = "crash.vanished"
        title = say(id_, rank=death.rank, inside=inside, victims=told)
        certainty, advice = Certainty.CANNOT_TELL, [say("advice.vanished", **where)]
    found = Finding(
        id_, Severity.CRITICAL, certainty, title, ranks=culprits, evidence=evidence,
        advice=tuple(advice),
    )  # fmt: skip
    return Mortem(symptom, (found,), culprits, waiting)


def _alike(end: End, death: End) -> bool:
    """Whether a rank ended as the first one did, and not as who lost it."""
    if end.state != death.state or end.blame() >= _BY_OTHERS:
        return False
    if end.state == "exception":
        return end.error is not None and end.error == death.error
    return end.state == "exit" and end.code == death.code


def _lost(bad: Sequence[End]) -> Finding:
    """All that ended complain of others, and nobody says that it ended first."""
    ranks = sorted(end.rank for end in bad)
    errors = {str(end.rank): end.error for end in bad if end.error}
    return Finding(
        "crash.error",
        Severity.CRITICAL,
        Certainty.CANNOT_TELL,
        say("log.only_effects", ranks=ranks_words(ranks)),
        evidence={"class": "closed", "victims": ranks, "errors": errors},
        advice=(say("advice.log.all"),),
    )


def _from_outside(bad: Sequence[End], options: Options) -> bool:
    """Whether somebody ended all ranks alike: asked them to end, or killed all of them at once."""
    signals = {end.signal for end in bad}
    times = [end.time_ns for end in bad]
    at_once = max(times) - min(times) <= options.deaths_together_s * 1e9
    return signals == {_TERM} or (signals == {_KILL} and at_once)


def _class(death: End) -> str:
    """The class of causes of a rank's end."""
    if death.state == "exception":
        told = cause_of_text(death.error)
        return told or ("closed" if death.blame() >= _BY_OTHERS else "error")
    if death.state == "signal" and death.source in _TOLD:
        return "aborted" if death.signal == _ABORT else "killed_signal"
    return "exit" if death.state == "exit" else "vanished"


def _ended(bad: Sequence[End]) -> Finding:
    first = min(bad, key=lambda end: end.time_ns)
    return Finding(
        "crash.killed",
        Severity.WARNING,
        Certainty.LIKELY,
        say("crash.ended", signal=first.signal, name=_signal_name(first.signal or _TERM)),
        ranks=tuple(sorted(end.rank for end in bad)),
        evidence={
            "class": "terminated", "signal": first.signal, "source": first.source,
            "time_ns": first.time_ns,
        },
        advice=(say("advice.ended"),),
    )  # fmt: skip


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _inside(end: End) -> Words:
    """What a rank was in the middle of."""
    inside = end.inside
    if inside is not None and inside.kind != "step":
        if inside.step is None:
            return say("inside.stepless", name=inside.name)
        return say("inside", name=inside.name, step=inside.step)
    if end.last_span is not None:
        step = inside.step if inside is not None else end.last_step
        if step is None:
            return say("inside.stepless", name=end.last_span)
        return say("inside.after", step=step, name=end.last_span)
    return say("inside.nothing")


# Words for both


def call_words(call: Open, facts: Facts) -> Words:
    """A call as people say it."""
    if call.pair:
        other = "anyone" if call.root is None else call.root
        return say(f"call.{call.op}", rank=other)
    group = facts.group_names.get(call.group or "") or call.group or "?"
    return Words("{op} {seq} of group {group}", {"op": call.op, "seq": call.seq, "group": group})


def _call_evidence(call: Open) -> dict[str, object]:
    return {"op": call.op, "group": call.group, "seq": call.seq, "since_ns": call.start_ns}
