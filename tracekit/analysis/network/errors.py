"""Findings about what the communication library complained of: causes first, effects with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tracekit.analysis.network.facts import Notice, Told
from tracekit.analysis.network.rails import Rails, rails_of
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say

__all__ = ["error_findings", "roots"]

_ORDER = (
    "gpu_ecc", "gpu_oom", "gpu_assert", "gpu_illegal", "host_memlock", "host_files", "host_shm",
    "fabric_manager", "same_device", "versions", "launcher", "net_interface", "mismatch",
    "net_port", "net_acs", "net_gdr", "net_gid", "net_retry", "net_firewall", "net_socket", "usage",
)  # fmt: skip
"""What may cause what follows it here; by class and never by time, since who prints first is
seldom who failed first."""
_IDS = {
    "gpu_oom": "crash.oom", "gpu_ecc": "crash.error", "gpu_illegal": "crash.error",
    "gpu_assert": "crash.error", "usage": "crash.error", "host_memlock": "host.limit",
    "host_files": "host.limit", "host_shm": "host.limit", "fabric_manager": "host.limit",
    "same_device": "config.device", "versions": "config.versions", "launcher": "config.env",
    "mismatch": "hang.mismatch",
}  # fmt: skip
_ADVICE = {
    "gpu_ecc": ("gpu",), "gpu_oom": ("gpu_memory",), "gpu_assert": ("gpu_code",),
    "gpu_illegal": ("gpu_code",), "host_memlock": ("memlock",), "host_files": ("files",),
    "host_shm": ("shm",), "fabric_manager": ("fabric",), "same_device": ("device",),
    "versions": ("versions",), "launcher": ("launcher",), "net_interface": ("interface",),
    "mismatch": ("settings", "branch"), "net_port": ("port", "pairwise"), "net_acs": ("acs",),
    "net_gdr": ("gdr",), "net_gid": ("gid", "rail"), "net_retry": ("gid", "reach", "pairwise"),
    "net_firewall": ("firewall",), "net_socket": ("hardware",), "usage": ("usage",),
}  # fmt: skip
_SPECIAL = {"security_group": ("security_group",), "rails": ("rails", "gid")}
"""What is told more exactly than by its class."""
_SECURITY_GROUP = "NET/OFI"
_RETRIES = 5
"""Tries to connect before it is worth a word."""
_DUPLICATES = re.compile(r"rank (\d{1,7})\b[^\d]{1,20}rank (\d{1,7})")
_FLUSHED = ("error 5,", "status=5 ", "WR_FLUSH", "more than 1EB", "Tried to allocate")
_DOCKER = re.compile(r"^172\.(1[7-9]|2\d|3[01])\.")


def roots(told: Told) -> dict[str, list[Notice]]:
    """The causes that the log names, by class, the most basic first."""
    found: dict[str, list[Notice]] = {}
    for notice in told.notices:
        if notice.role == "primary" and notice.cause:
            found.setdefault(_class(notice), []).append(notice)
    return {cause: found[cause] for cause in (*_ORDER, *sorted(found)) if cause in found}


def _class(notice: Notice) -> str:
    """A peer with the address of a container's bridge is a wrong interface, not a firewall."""
    if notice.cause == "net_firewall" and _DOCKER.match(notice.peer or ""):
        return "net_interface"
    return str(notice.cause)


def error_findings(told: Told, failed: Mapping[str, list[Notice]]) -> Iterator[Finding]:
    """The cause, with what follows from it; or what can be said where only effects are logged."""
    effects = [notice for notice in told.notices if notice.role == "secondary"]
    if failed:
        cause, *others = failed
        yield _root(told, cause, failed[cause], others, effects, failed)
        return
    effects = [notice for notice in effects if not notice.closing]
    loud = [n for n in effects if not any(text in n.text for text in _FLUSHED)]
    if loud:
        yield _closed(told, loud)
    elif effects:
        yield _remark("net.flushed", effects)
    yield from _retries(told)
    ports = [n for n in told.notices if n.cause in ("net_port", "net_gid") and n.role == "note"]
    if ports:
        yield _remark("net.event", ports, "net_port")
    unknown = [notice for notice in told.notices if notice.role == "unknown"]
    if unknown:
        yield _remark("net.unknown", unknown)


def _root(
    told: Told,
    cause: str,
    notices: Sequence[Notice],
    others: Sequence[str],
    effects: Sequence[Notice],
    failed: Mapping[str, list[Notice]],
) -> Finding:
    ranks = tuple(sorted({n.rank for n in notices if n.rank is not None}))
    hosts = sorted({n.host for n in notices if n.host and n.host != "?"})
    if cause == "same_device" and (both := _DUPLICATES.search(notices[0].text)):
        ranks = (int(both[1]), int(both[2]))
    peers = sorted({n.peer for n in notices if n.peer})
    first = max(notices, key=lambda notice: notice.count)
    key = "security_group" if _SECURITY_GROUP in first.text else cause
    rails = rails_of(notices)
    if rails.only_across:
        key = "rails"
    title = say(
        f"net.error.{key}",
        who=ranks_words(ranks) if ranks else ", ".join(hosts[:4]) or say("net.somebody"),
        hosts=", ".join(hosts[:4]) or say("net.unknown_host"),
        peer=", ".join(_named(told, peer) for peer in peers[:3]) or say("net.unknown_peer"),
        text=first.text[:160], count=sum(n.count for n in notices), known=len(rails.across),
        pairs=", ".join(f"{one}–{other}" for one, other in sorted({*rails.across})[:4]),
    )  # fmt: skip
    keys = _SPECIAL.get(key) or _ADVICE.get(cause, ("reach",))
    if rails.along:  # also cards of one rail do not reach each other
        keys = tuple(one for one in keys if one != "rail")
    if cause == "net_retry" and not _over_ethernet(told):
        keys = tuple(one for one in keys if one != "gid")
    host = hosts[0] if hosts else "HOST"
    values = {"host": host, "peer": peers[0] if peers else "PEER", "card": _card(first)}
    following = sorted({f"rank {n.rank}" if n.rank is not None else n.host for n in effects})
    return Finding(
        _IDS.get(cause, "comm.error"),
        Severity.CRITICAL,
        Certainty.PROVEN if cause in ("versions", "same_device") else Certainty.LIKELY,
        title,
        ranks=ranks,
        evidence={
            "class": cause,
            "hosts": hosts,
            "peers": peers,
            "peer_ranks": sorted({rank for peer in peers for rank in _there(told, peer)}),
            "count": sum(n.count for n in notices),
            **_ends(rails),
            "also": {name: [n.source for n in failed[name]][:4] for name in others},
            "effects": following[:16],
            "lines": [f"{n.source}: {n.text[:200]}" for n in notices[:6]],
        },
        advice=tuple(
            say("advice.branch") if one == "branch" else say(f"advice.net.{one}", **values)
            for one in keys
        ),
        cause=cause,
    )


def _ends(rails: Rails) -> dict[str, object]:
    """Which cards the failed queues join."""
    if not rails.across and not rails.along:
        return {}
    return {
        "across_rails": [list(pair) for pair in rails.across[:16]],
        "along_rails": [list(pair) for pair in rails.along[:16]],
        "queues_with_unknown_end": rails.unknown,
    }


def _there(told: Told, address: str) -> tuple[int, ...]:
    """The ranks at an address, where the log tells."""
    return told.ranks(
        peer for peer in told.peers
        if address in (peer.network.get("address"), peer.host) or address.startswith(peer.host)
    )  # fmt: skip


def _named(told: Told, address: str) -> str:
    """A peer's address with the ranks that are there."""
    ranks = _there(told, address)
    return f"{address} ({ranks_words(ranks)})" if ranks and len(ranks) <= 8 else address


def _over_ethernet(told: Told) -> bool:
    """Whether cards speak RoCE, or none says what it speaks."""
    links = {c.get("link") for p in told.peers for c in p.network.get("hcas") or ()}
    return "RoCE" in links or not links


def _card(notice: Notice) -> str:
    found = re.search(r"\b(?:hca|on dev) ([\w.-]{1,40})|NET/IB : ([\w.-]{1,40}):\d", notice.text)
    return (found[1] or found[2]) if found else "mlx5_0"


# Where only effects are told


def _closed(told: Told, effects: Sequence[Notice]) -> Finding:
    """Connections that others ended: who they are is known, why is not in these lines."""
    peers = sorted({n.peer for n in effects if n.peer})
    victims = tuple(sorted({n.rank for n in effects if n.rank is not None}))
    one = len(peers) == 1
    named = ", ".join(_named(told, peer) for peer in peers[:4])
    return Finding(
        "comm.error",
        Severity.WARNING,
        Certainty.LIKELY if one else Certainty.CANNOT_TELL,
        say("net.closed" if one else "net.closed.several" if peers else "net.effects", peer=named),
        evidence={
            "class": None,
            "peers": peers,
            "complaining_ranks": list(victims),
            "lines": [f"{n.source}: {n.text[:200]}" for n in effects[:6]],
        },
        advice=(say("advice.net.peer", peer=peers[0] if peers else "every host"),),
    )


def _retries(told: Told) -> Iterator[Finding]:
    """Tries to connect that went on and on, of processes that never came further."""
    works = {peer.rank for peer in told.peers if peer.process.get("works")}
    tries = [n for n in told.notices if n.cause == "net_firewall" and n.role == "note"]
    bad = [n for n in tries if _tries(n) >= _RETRIES and n.rank not in works]
    if not bad:
        return
    peers = sorted({n.peer for n in bad if n.peer})
    yield Finding(
        "comm.error",
        Severity.WARNING,
        Certainty.LIKELY,
        say(
            "net.retries", count=sum(_tries(n) for n in bad),
            who=ranks_words(tuple(sorted({n.rank for n in bad if n.rank is not None}))) or "",
            peer=", ".join(_named(told, peer) for peer in peers[:4]) or say("net.unknown_peer"),
        ),
        ranks=tuple(sorted({n.rank for n in bad if n.rank is not None})),
        evidence={
            "class": "net_firewall",
            "peers": peers,
            "lines": [f"{n.source}: {n.text[:200]}" for n in bad[:6]],
        },
        advice=(say("advice.net.firewall", peer=peers[0] if peers else "PEER", host=bad[0].host),),
    )  # fmt: skip


def _tries(notice: Notice) -> int:
    found = re.search(r"retrying \((\d{1,6})/\d{1,6}\)", notice.text)
    return max(notice.count, int(found[1]) if found else 0)


def _remark(key: str, notices: Sequence[Notice], cause: str | None = None) -> Finding:
    return Finding(
        "comm.error",
        Severity.INFO,
        Certainty.CANNOT_TELL,
        say(key, count=sum(n.count for n in notices), text=notices[0].text[:160]),
        ranks=tuple(sorted({n.rank for n in notices if n.rank is not None})),
        evidence={
            "class": cause,
            "lines": [f"{n.source}: {n.text[:200]}" for n in notices[:6]],
        },
    )
