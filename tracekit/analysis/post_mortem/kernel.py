"""What kernels' lines tell of ranks: whom they killed for memory, whose GPU failed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.analysis.post_mortem.claims import Mortem
from tracekit.analysis.post_mortem.first_errors import Case
from tracekit.analysis.post_mortem.log_notes import may_be_ours
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say
from tracekit.findings.causes import XIDS

__all__ = ["gpu_faults", "killed_for_memory"]

_KILL = 9
_ANOTHER_DAY_NS = 26 * 3600 * 10**9
"""Beyond that a line is of another time, whatever zone it was written in."""
_PCI = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.\d)?$")
_ALONE = r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"


def killed_for_memory(case: Case) -> Mortem | None:
    """The kernel's out-of-memory killer, or a scheduler that tells of it."""
    told = [
        event
        for event in case.logs.about("kernel", "kernel_note", "oom_event", "task_end")
        if event.get("class") == "killed_oom" and _of_this_time(case, event)
    ]
    if not told:
        return None
    for event in told:
        ranks = _by_pid(case, event)
        if len(ranks) == 1:
            return _killed(case, ranks[0], "log.killed_oom", event, Certainty.PROVEN)
    killed = [rank for rank, end in case.ends.items() if end.signal == _KILL]
    if len(killed) == 1:
        of_it = [event for event in told if _can_be(case, event, killed[0])]
        if of_it:
            return _killed(case, killed[0], "log.killed_oom.likely", of_it[0], Certainty.LIKELY)
    ours = [event for event in told if may_be_ours(event)]
    if not ours or any(event.is_cause for event in case.logs.events):
        return None
    if case.mortem.symptom is None and not case.troubled():
        return None  # somebody's process on that host; the ranks went on
    finding = Finding(
        "crash.killed", Severity.CRITICAL, Certainty.CANNOT_TELL,
        say("log.killed_oom.unknown", text=ours[0]["text"]),
        evidence=case.evidence(ours[0]), advice=(say("advice.log.memory"),),
    )  # fmt: skip
    return Mortem("oom", (finding,))


def _killed(
    case: Case, rank: int, key: str, event: Mapping[str, Any], certainty: Certainty
) -> Mortem:
    finding = Finding(
        "crash.killed", Severity.CRITICAL, certainty,
        say(key, rank=rank, text=event["text"], victims=case.victims((rank,))),
        ranks=(rank,), evidence=case.evidence(event, rank), advice=(say("advice.log.memory"),),
    )  # fmt: skip
    return Mortem("oom", (finding,), (rank,))


def gpu_faults(case: Case) -> Iterator[Mortem]:
    """Errors of GPUs that drivers reported (Xid), of ranks whose process or host they name.

    Nothing where the job has no trouble, and where a line names nobody: then it is worth a remark.
    """
    if case.mortem.symptom is None and not case.troubled():
        return
    seen: set[tuple[object, ...]] = set()
    for event in case.logs.about("kernel"):
        cause = XIDS.get(str(event.get("xid")))
        if event.get("class") != "gpu_xid" or cause is None or not _of_this_time(case, event):
            continue
        means = say(f"xid.{event.get('xid')}")
        ranks, host = _by_pid(case, event), _host(case, event)
        ranks = ranks if len(ranks) == 1 else _by_address(case, event)
        certainty = Certainty.PROVEN
        if len(ranks) != 1:
            ranks = [r for r in case.ranks if host and _short(case.facts.of(r).host) == host]
            certainty = Certainty.LIKELY
        if not ranks or (cause, *ranks) in seen:
            continue
        seen.add((cause, *ranks))
        # Of several ranks of a host one had the GPU; the others are not to be accused with it.
        named = tuple(ranks) if len(ranks) == 1 else ()
        yield Mortem(
            "crash",
            (
                Finding(
                    "crash.error", Severity.CRITICAL, certainty,
                    say(
                        "log.xid.rank" if len(ranks) == 1 else "log.xid.host",
                        ranks=ranks_words(ranks), host=host or say("log.xid.its_host"),
                        xid=event.get("xid"), means=means, text=str(event["text"])[:160],
                        victims=case.victims(ranks),
                    ),
                    ranks=named,
                    evidence={**case.evidence(event), "class": cause, "host": host,
                              "xid": event.get("xid"), "device": event.get("device"),
                              "candidates": [] if named else ranks},
                    advice=(say("advice.log.gpu"),),
                ),
            ),
            named,
        )  # fmt: skip


def _by_pid(case: Case, event: Mapping[str, Any]) -> list[int]:
    """The ranks whose process has the pid of a line, on the line's host where that is known."""
    pid = event.get("pid")
    if pid is None:
        return []
    ranks = [
        rank
        for rank in case.ranks
        if case.facts.of(rank).identity.get("pid") == int(pid) and _can_be(case, event, rank)
    ]
    if len(ranks) > 1:
        return [rank for rank in ranks if rank in case.ended()]
    return ranks


def _by_address(case: Case, event: Mapping[str, Any]) -> list[int]:
    """The ranks of a line's host whose GPU has its PCI address, as NCCL's log tells: hosts have
    the same addresses, so a line of an unknown one tells nobody."""
    address, host = _pci(str(event.get("device") or "")), _host(case, event)
    if address is None or not host:
        return []
    return [
        rank
        for rank in case.ranks
        if _short(case.facts.of(rank).host) == host
        and any(_bus(c.get("bus")) == address for c in case.facts.of(rank).told("communicator"))
    ]


def _pci(device: str) -> int | None:
    """Domain, bus and device of an address such as PCI:0000:3b:00.0, as one number."""
    found = _PCI.search(device)
    if found is None:
        return None
    domain, bus, number = (int(part or "0", 16) for part in found.groups())
    return domain << 16 | bus << 8 | number


def _bus(told: object) -> int | None:
    """The same of what NCCL writes: one number in hexadecimal, four bits for each last part."""
    try:
        number = int(str(told), 16)
    except ValueError:
        return None
    return (number >> 20) << 16 | (number >> 12 & 0xFF) << 8 | number >> 4 & 0xFF


def _can_be(case: Case, event: Mapping[str, Any], rank: int) -> bool:
    """Whether a line can be about a rank: it is of the same host, as far as both are known."""
    host, own = _host(case, event), _short(case.facts.of(rank).host)
    return not host or not own or host == own


def _host(case: Case, event: Mapping[str, Any]) -> str:
    """The host that a line is from: as it says itself, else by the name of its file."""
    if event.get("host"):
        return _short(str(event["host"]))
    hosts = {_short(case.facts.of(rank).host) for rank in case.ranks} - {""}
    file = str(event.get("source") or "").rpartition(":")[0]
    there = [host for host in hosts if re.search(_ALONE.format(re.escape(host)), file)]
    return there[0] if len(there) == 1 else ""


def _short(host: str) -> str:
    return host.partition(".")[0]


def _of_this_time(case: Case, event: Mapping[str, Any]) -> bool:
    """Whether a line can be of this job: kernels keep lines for weeks."""
    time_ns = event.get("time_ns")
    ends = [end.time_ns for end in case.ends.values() if end.time_ns]
    if time_ns is None or not ends or not case.facts.recorded:
        return True
    return min(abs(int(time_ns) - end) for end in ends) < _ANOTHER_DAY_NS
