"""Findings about start-ups that did not end, and calls in which ranks differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracekit.analysis.network.facts import Peer, Told
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say

__all__ = ["hang_findings"]

_Member = tuple[Peer, Mapping[str, Any]]
"""A process and what it told of a communicator."""
_PAST = (None, "complete", "collectives")
"""Steps of a process that is not in a start-up."""
_FEW_CALLS = 4
"""So many calls at most are a job that got stuck in its first ones."""


def hang_findings(told: Told, failed: Mapping[str, Any]) -> Iterator[Finding]:
    """Calls that differ, whatever else failed; a start-up only where nothing explains it."""
    yield from _mismatches(told)
    if not failed:
        yield from _start_ups(told)
        yield from _behind(told)


# Start-up


def _start_ups(told: Told) -> Iterator[Finding]:
    groups: dict[tuple[str, int], list[_Member]] = {}
    for peer in told.peers:
        for comm in peer.comms:
            if comm.get("nranks") and comm.get("rank") is not None:
                name = str(comm.get("group") or comm.get("hash") or "")
                groups.setdefault((name, int(comm["nranks"])), []).append((peer, comm))
    for (_, size), members in groups.items():
        stuck = [
            (peer, comm) for peer, comm in members
            if comm.get("state") in ("start", "seen") and not peer.process.get("closing")
            and (not peer.process.get("works") or _begins_another(peer, comm))
        ]  # fmt: skip
        if stuck:
            yield _start_up(told, size, members, stuck, groups)
            return  # one is enough: the others follow from it


def _begins_another(peer: Peer, comm: Mapping[str, Any]) -> bool:
    """Whether a process that has working communicators ends its log in the start of one more."""
    return comm.get("state") == "start" and peer.process.get("stage") not in _PAST


def _start_up(
    told: Told,
    size: int,
    members: Sequence[_Member],
    stuck: Sequence[_Member],
    groups: Mapping[tuple[str, int], Sequence[_Member]],
) -> Finding:
    came = {int(comm["rank"]) for _, comm in members}
    gone = tuple(rank for rank in range(size) if rank not in came)
    absent = _ranks_of_job(gone, members, groups) if gone else ()
    silent = [p for p in told.peers if not p.comms and not p.process.get("works")]
    done = len(came) - len({int(comm["rank"]) for _, comm in stuck})
    if done:
        key, ranks = "net.start.some", told.ranks(peer for peer, _ in stuck)
    elif not gone:
        key, ranks = "net.start.all", ()
    elif not absent:
        key, ranks = "net.start.child", ()
    elif any(comm.get("parent") for _, comm in members):
        key, ranks = "net.start.member", absent
    elif silent:
        key, ranks = "net.start.silent", absent
    else:
        key, ranks = "net.start.absent", absent
    hosts = sorted({peer.host for peer in silent} - {"", "?"})
    stages = sorted({str(peer.process.get("stage") or "unknown") for peer, _ in stuck})
    return Finding(
        "hang.missing_rank",
        Severity.CRITICAL,
        Certainty.LIKELY if key == "net.start.silent" else Certainty.CANNOT_TELL,
        say(
            key, came=len(came), size=size, count=len(gone),
            ranks=ranks_words(ranks) if ranks else "",
            stage=", ".join(stages), hosts=", ".join(hosts[:4]) or say("net.unknown_host"),
        ),
        ranks=ranks,
        evidence={
            "class": "rank_missing" if gone else None,
            "communicator": next((c.get("group") or c.get("hash") for _, c in members), None),
            "phase": "startup",
            "came": sorted(told.ranks(peer for peer, _ in members))[:64],
            "absent": list(absent[:64]),
            "stage": stages,
            "lines": [f"{peer.last}: the last line of {peer.name}" for peer, _ in stuck[:6]],
        },
        advice=(
            say("advice.net.logs") if gone and not silent else say("advice.net.stacks"),
            say("advice.net.subsystems"),
            say("advice.net.ports"),
            say("advice.net.alone"),
        ),
    )  # fmt: skip


def _ranks_of_job(
    gone: Sequence[int],
    members: Sequence[_Member],
    groups: Mapping[tuple[str, int], Sequence[_Member]],
) -> tuple[int, ...]:
    """The job's ranks of members that never began; none where that does not follow.

    Of the communicator of the whole job they are the same. Of one that was split off another,
    they are whoever of that one is in none of its other parts, where their number fits.
    """
    if any(comm.get("world") for _, comm in members) or not any("group" in c for _, c in members):
        return tuple(gone)
    split = next(((c["parent"], c["split"]) for _, c in members if c.get("parent")), None)
    if split is None:
        return ()
    number = str(split[1]).partition("/")[0]
    parts: set[int | None] = set()
    whole: set[int | None] = set()
    complete = False
    for (name, size), listed in groups.items():
        there = {peer.rank for peer, _ in listed}
        if name == split[0]:
            whole, complete = there, len(there) == size
        elif any(
            c.get("parent") == split[0] and str(c.get("split")).partition("/")[0] == number
            for _, c in listed
        ):
            parts |= there
    left = sorted(rank for rank in whole - parts if rank is not None)
    return tuple(left) if complete and len(left) == len(gone) else ()


# Calls


def _mismatches(told: Told) -> Iterator[Finding]:
    for value, source in told.mismatches:
        calls = value.get("calls") or {}
        kinds: dict[str, list[int]] = {}
        for rank, call in sorted(calls.items(), key=lambda item: int(item[0])):
            kinds.setdefault(_call(call), []).append(int(rank))
        listed = "; ".join(
            f"{ranks_words(tuple(ranks))}: {call}" for call, ranks in sorted(kinds.items())
        )
        lines = [
            f"{calls_of['source']}: the last of {calls_of['calls']} calls of {peer.name}"
            for peer in told.peers
            for calls_of in peer.calls
            if calls_of.get("group") == value.get("group")
        ]
        yield Finding(
            "hang.mismatch",
            Severity.CRITICAL,
            Certainty.PROVEN,
            say(
                "net.mismatch" if calls else "net.mismatch.between",
                number=value.get("number"), not_after=value.get("not_after"), listed=listed,
            ),
            ranks=tuple(sorted(int(rank) for rank in calls)) if len(calls) <= 64 else (),
            evidence={
                "class": "mismatch",
                "communicator": value.get("group"),
                "number": value.get("number"),
                "not_after": value.get("not_after"),
                "calls": dict(list(calls.items())[:64]),
                "lines": [source, *lines[:6]],
            },
            advice=(say("advice.branch"), say("advice.net.settings")),
        )  # fmt: skip


def _call(call: Mapping[str, Any]) -> str:
    size = f"{call.get('count')} {call.get('dtype')}"
    return f"{call.get('op')} of {size}"


def _behind(told: Told) -> Iterator[Finding]:
    """Ranks that made fewer calls: a remark, since logs of a running job end where they end."""
    groups: dict[str, list[tuple[Peer, Mapping[str, Any]]]] = {}
    for peer in told.peers:
        for calls in peer.calls:
            groups.setdefault(str(calls.get("group")), []).append((peer, calls))
    for members in groups.values():
        counts = [int(calls.get("calls") or 0) for _, calls in members]
        most = max(counts)
        late = [peer for (peer, _), count in zip(members, counts, strict=True) if count < most]
        if late and len(late) < len(members):
            yield _remark(
                "net.behind", told, late, members, "rank_missing",
                ranks=ranks_words(told.ranks(late)), most=most, least=min(counts),
            )  # fmt: skip
        elif len(members) > 1 and most <= _FEW_CALLS and _over_p2p(members):
            yield _remark("net.first_calls", told, (), members, "net_acs", most=most)


def _over_p2p(members: Sequence[tuple[Peer, Mapping[str, Any]]]) -> bool:
    return all(
        (peer.network.get("connections") or {}).get("P2P") and not peer.process.get("closing")
        for peer, _ in members
    )


def _remark(
    key: str,
    told: Told,
    late: Sequence[Peer],
    members: Sequence[tuple[Peer, Mapping[str, Any]]],
    cause: str,
    **values: Any,
) -> Finding:
    return Finding(
        "hang.missing_rank" if late else "comm.error",
        Severity.INFO,
        Certainty.CANNOT_TELL,
        say(key, **values),
        ranks=told.ranks(late),
        evidence={
            "class": cause,
            "lines": [
                f"{calls['source']}: the last call of {peer.name}, its number {calls['calls']}"
                for peer, calls in members[:8]
            ],
        },
        advice=(say("advice.net.p2p" if not late else "advice.net.stacks"),),
    )
