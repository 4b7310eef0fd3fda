"""Findings from answers of NCCL's RAS: who is dead or silent, who launched fewer collectives.

One answer is a look at a job that may go on. That counts differ is no fault; that they differ and
do not move between two looks is. Whoever is behind there and ahead nowhere is who did not arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracekit.analysis.network.facts import Look, Told
from tracekit.analysis.network.ras_counts import Lag, lags_of
from tracekit.analysis.options import Options
from tracekit.findings import Certainty, Finding, Severity, Words, ranks_words, say

__all__ = ["ras_findings"]

_ROLES: Mapping[str, tuple[str, Severity, Certainty, str | None]] = {
    "gpu": ("crash.error", Severity.CRITICAL, Certainty.LIKELY, "gpu_illegal"),
    "usage": ("crash.error", Severity.CRITICAL, Certainty.LIKELY, "usage"),
    "system": ("comm.error", Severity.WARNING, Certainty.CANNOT_TELL, None),
    "effect": ("comm.error", Severity.WARNING, Certainty.CANNOT_TELL, None),
}
"""How errors are told that ranks report to RAS, those that cause others first."""
_NAMED = 4

_Process = Mapping[str, Any]


def ras_findings(told: Told, options: Options) -> Iterator[Finding]:
    """What the newest answers tell, alone and against the ones before."""
    apart_s, hung_s = options.looks_apart_s, options.looks_hung_s
    status = [look for look in told.looks if look.form != "event"]
    newest = status[-1] if status else None
    before = status[-2] if len(status) > 1 else None
    yield from _dead(told, newest)
    if newest is None:
        return
    yield from _silent(told, newest, before, apart_s)
    yield from _reported(newest)
    yield from _counts(status, apart_s, hung_s)
    yield from _start_up(newest, before, hung_s)


def _times(newest: Look, before: Look | None) -> dict[str, Any]:
    gap = newest.gap_s(before)
    return {"looks": 1 if before is None else 2, "apart_s": gap}


# Processes


def _dead(told: Told, newest: Look | None) -> Iterator[Finding]:
    """Processes given up by RAS, which is for ever."""
    looks = told.looks
    found: dict[tuple[str, int], tuple[_Process, str]] = {}
    for look in looks:
        if look.form == "event" or look is newest:
            for process in look.value.get("dead") or ():
                found.setdefault((process["host"], process["pid"]), (process, look.source))
    count = max([len(found), *(int(look.value.get("dead_count") or 0) for look in looks[-1:])])
    if not count:
        return
    of = int((newest.value.get("processes") if newest else 0) or 0)
    over = newest is not None and not newest.value.get("running")
    listed = [process for process, _ in found.values()]
    ranks = _ranks(told, listed, newest)
    yield Finding(
        "crash.vanished",
        Severity.WARNING if over or 2 * count > of > 0 else Severity.CRITICAL,
        Certainty.CANNOT_TELL if over or 2 * count > of > 0 else Certainty.LIKELY,
        say("net.ras.over" if over else "net.ras.dead", who=_who(listed, ranks, count)),
        ranks=ranks,
        evidence={
            "class": "vanished",
            "processes": listed[:64],
            "count": count,
            "lines": [f"{source}: {_process(one)}" for one, source in found.values()][:8],
        },
        advice=tuple(
            say(key, **_place(listed)) for key in ("advice.net.ras.process", "advice.vanished")
        ),
    )  # fmt: skip


def _silent(
    told: Told, newest: Look, before: Look | None, apart_s: float
) -> Iterator[Finding]:  # fmt: skip
    """Processes that gave no answer, and are not given up yet."""
    listed = list(newest.value.get("silent") or ())
    count = max(len(listed), int(newest.value.get("silent_count") or 0))
    if not count:
        return
    keys = {(one["host"], one["pid"]) for one in listed}
    earlier = (before.value.get("silent") if before else None) or ()
    again = bool(keys) and keys <= {(one["host"], one["pid"]) for one in earlier}
    again &= (newest.gap_s(before) or 0.0) >= apart_s
    over = not newest.value.get("running")
    ranks = _ranks(told, listed, newest)
    severity = Severity.CRITICAL if again else Severity.WARNING
    yield Finding(
        "hang.missing_rank",
        Severity.INFO if over else severity,
        Certainty.CANNOT_TELL if over or not listed else Certainty.LIKELY,
        say(
            "net.ras.silent.again" if again else "net.ras.silent",
            who=_who(listed, ranks, count), seconds=newest.gap_s(before) or 0.0,
        ),
        ranks=ranks,
        evidence={
            "class": "rank_missing",
            "processes": listed[:64],
            "count": count,
            **_times(newest, before if again else None),
            "lines": [f"{newest.source}: {_process(one)}" for one in listed[:8]],
        },
        advice=(say("advice.net.ras.process", **_place(listed)), say("advice.net.ras.again")),
    )  # fmt: skip


def _process(told: _Process) -> str:
    gpus = ", ".join(str(gpu) for gpu in told.get("gpus") or ())
    return f"process {told['pid']} on {told['host']}, GPU {gpus or 'unknown'}"


def _ranks(told: Told, listed: Sequence[_Process], look: Look | None) -> tuple[int, ...]:
    """Their ranks in the job: told, here or by the library's log, or all that are missing where
    these are all that are."""
    known = {int(rank) for one in listed for rank in one.get("ranks") or ()}
    if not known:
        logged = [told.rank_at(one["host"], one["pid"]) for one in listed]
        known = {rank for rank in logged if rank is not None}
    world = look.world if look is not None else None
    if known or world is None or look is None:
        return tuple(sorted(known))
    missing = world.get("missing_ranks") or ()
    gone = [*(look.value.get("dead") or ()), *(look.value.get("silent") or ())]
    devices = sum(len(one.get("gpus") or ()) for one in gone)
    alone = {(p["host"], p["pid"]) for p in gone} == {(p["host"], p["pid"]) for p in listed}
    return tuple(sorted(missing)) if alone and len(missing) == devices else ()


def _who(listed: Sequence[_Process], ranks: Sequence[int], count: int) -> Words | str:
    places = ", ".join(_process(one) for one in listed[:_NAMED])
    if ranks:
        return say("net.ras.ranks", ranks=ranks_words(ranks), places=places or "?")
    return places if listed and count <= _NAMED else say("net.ras.some", count=count)


def _place(listed: Sequence[_Process]) -> dict[str, Any]:
    one = listed[0] if listed else {"host": "HOST", "pid": "PID"}
    return {"host": one["host"], "pid": one["pid"]}


# Errors that ranks reported


def _reported(newest: Look) -> Iterator[Finding]:
    by_role: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for comm in newest.communicators:
        for one in comm.get("reported") or ():
            by_role.setdefault(str(one.get("role") or "effect"), []).append((comm, one))
    role = next((role for role in _ROLES if role in by_role), None)
    if role is None:
        return
    id_, severity, certainty, cause = _ROLES[role]
    found = by_role[role]
    ranks = sorted({r for comm, one in found for r in newest.of_job(comm, one.get("ranks") or ())})
    errors = sorted({str(one["error"]) for _, one in found})
    counted = max(int(one.get("count") or 0) for _, one in found)
    yield Finding(
        id_, severity, certainty,
        say(
            f"net.ras.reported.{'effect' if cause is None else 'cause'}",
            who=ranks_words(ranks) if ranks else say("net.ras.some", count=counted),
            errors=", ".join(errors),
        ),
        ranks=tuple(ranks) if cause is not None else (),
        evidence={
            "class": cause,
            "error": errors[0],
            "complaining_ranks": ranks,
            "others": sorted(name for name in by_role if name != role),
            "lines": [
                f"{newest.source}: {comm.get('name') or comm['hash']}: {one['count']} ranks"
                f" report {one['error']} ({one['phase']})" for comm, one in found
            ][:8],
        },
        advice=(say("advice.net.ras.error"),),
    )  # fmt: skip


# Counts


def _counts(status: Sequence[Look], apart_s: float, hung_s: float) -> Iterator[Finding]:
    """Who launched fewer collectives than the others of a communicator, and whether that lasts."""
    newest = status[-1]
    lags = lags_of(status, apart_s)
    if not lags:
        yield from _unmoved(status, hung_s)
        return
    stuck = [lag for lag in lags if lag.stuck]
    if stuck:
        yield _stuck(newest, stuck, status, hung_s)
        return
    stalled = [lag for lag in lags if lag.stalled]
    if stalled:
        yield _stalled(newest, stalled[0], status)
        return
    lag = lags[0]
    seen_once = lag.before is None or not lag.far
    yield Finding(
        "hang.missing_rank", Severity.INFO, Certainty.CANNOT_TELL,
        say("net.ras.differ.once" if seen_once else "net.ras.differ.moves", **_of(newest, lag)),
        evidence={"class": "rank_missing", **_told(newest, lag), "looks": len(status)},
        advice=(say("advice.net.ras.again"),) if seen_once else (),
    )  # fmt: skip


def _of(newest: Look, lag: Lag) -> dict[str, Any]:
    return {
        "op": lag.op, "most": lag.most, "least": lag.least, "behind": lag.behind_count,
        "size": lag.size or "?", "comm": lag.name,
        "who": _members(newest, lag, lag.behind),
    }  # fmt: skip


def _members(newest: Look, lag: Lag, ranks: Sequence[int]) -> Words | str:
    """Ranks as the job calls them, else as the communicator does."""
    known = newest.of_job(lag.comm, ranks)
    if ranks and len(known) == len(ranks):
        return ranks_words(known)
    if ranks:
        return say("net.ras.of_comm", ranks=ranks_words(ranks), comm=lag.name)
    return say("net.ras.some_ranks", count=lag.behind_count)


def _told(newest: Look, lag: Lag) -> dict[str, Any]:
    return {
        "communicator": lag.comm.get("hash"),
        "operation": lag.op,
        "counts": lag.comm.get("counts"),
        "members": [m for m in lag.comm.get("members") or () if m.get("rank") in lag.behind][:64],
        "lines": [f"{newest.source}: {lag.name}: {lag.text}"],
    }


def _stuck(
    newest: Look, stuck: Sequence[Lag], status: Sequence[Look], hung_s: float
) -> Finding:  # fmt: skip
    """Counts that differ and stay: the ones behind, unless they wait in another communicator."""
    mismatch = next((lag for lag in stuck if lag.crossed), None)
    gap = newest.gap_s(status[-2])
    waiting = {key for lag in stuck for key in lag.keys(lag.ahead)}
    first = mismatch or max(stuck, key=lambda lag: (lag.minority, lag.size or 0))
    culprits = [rank for rank in first.behind if not set(first.keys([rank])) & waiting]
    known = newest.of_job(first.comm, culprits)
    said = {**_of(newest, first), "who": _members(newest, first, culprits or first.behind)}
    timed = gap is not None
    sure = timed and (mismatch is not None or (first.minority and bool(culprits)))
    key = "mismatch" if mismatch else "stuck" if first.minority and culprits else "stuck.most"
    return Finding(
        "hang.mismatch" if mismatch else "hang.missing_rank",
        Severity.CRITICAL if (gap or 0.0) >= hung_s else Severity.WARNING,
        Certainty.LIKELY if sure else Certainty.CANNOT_TELL,
        say(
            f"net.ras.{key}",
            since=say("net.ras.since", seconds=gap) if timed else say("net.ras.since.unknown"),
            other=first.crossed or "", **said,
        ),
        ranks=tuple(known) if sure and not mismatch else (),
        evidence={
            "class": "mismatch" if mismatch else "rank_missing",
            **_told(newest, first),
            **_times(newest, status[-2]),
            "lines": [f"{newest.source}: {lag.name}: {lag.text}" for lag in stuck[:4]]
            + [f"{status[-2].source}: the same"],
        },
        advice=(
            say("advice.net.ras.process", **_place(first.processes(culprits or first.behind))),
            *((say("advice.branch"),) if mismatch else ()),
            *(() if timed else (say("advice.net.ras.again"),)),
        ),
    )  # fmt: skip


def _stalled(newest: Look, lag: Lag, status: Sequence[Look]) -> Finding:
    """Ranks that launched nothing while the others went on."""
    known = newest.of_job(lag.comm, lag.behind)
    return Finding(
        "hang.missing_rank", Severity.WARNING, Certainty.LIKELY,
        say("net.ras.stalled", seconds=newest.gap_s(status[-2]) or 0.0, **_of(newest, lag)),
        ranks=tuple(known),
        evidence={
            "class": "rank_missing", **_told(newest, lag), **_times(newest, status[-2]),
        },
        advice=(say("advice.net.ras.process", **_place(lag.processes(lag.behind))),
                say("advice.net.ras.again")),
    )  # fmt: skip


def _unmoved(status: Sequence[Look], apart_s: float) -> Iterator[Finding]:
    """All ranks launched the same, and nothing since: if it hangs, nobody is missing."""
    if len(status) < 2:
        return
    newest, before = status[-1], status[-2]
    gap = newest.gap_s(before) or 0.0
    counts = {c["hash"]: c["counts"] for c in newest.communicators if c.get("counts")}
    earlier = {c["hash"]: c["counts"] for c in before.communicators if c.get("counts")}
    if counts and counts == earlier and gap >= apart_s:
        yield Finding(
            "hang.missing_rank", Severity.INFO, Certainty.CANNOT_TELL,
            say("net.ras.all_alike", seconds=gap),
            evidence={"class": None, **_times(newest, before), "lines": [newest.source]},
            advice=(say("advice.net.stacks"), say("advice.net.ras.again")),
        )  # fmt: skip


# Start-up


def _start_up(newest: Look, before: Look | None, apart_s: float) -> Iterator[Finding]:
    """A communicator that is being made in two looks."""
    if before is None or (newest.gap_s(before) or 0.0) < apart_s:
        return
    sizes = [size for size in _in_start_up(newest) if size in _in_start_up(before)]
    if sizes:
        yield Finding(
            "hang.missing_rank", Severity.CRITICAL, Certainty.CANNOT_TELL,
            say("net.ras.start_up", size=max(sizes), seconds=newest.gap_s(before)),
            evidence={
                "class": "rank_missing", "phase": "startup", **_times(newest, before),
                "lines": [newest.source, before.source],
            },
            advice=(say("advice.net.stacks"), say("advice.net.subsystems")),
        )  # fmt: skip


def _in_start_up(look: Look) -> list[int]:
    """The sizes of communicators of which ranks are not through their start-up."""
    rows = [int(row["size"]) for row in look.value.get("groups") or () if row["status"] == "INIT"]
    for comm in look.communicators:
        words = {state["value"] for state in comm.get("status") or ()}
        if "INIT" in words and not words & {"FINALIZE", "ABORT"} and comm.get("size"):
            rows.append(int(comm["size"]))
    return rows
