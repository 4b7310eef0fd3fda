"""Findings about network cards: slow links, cards that are missing.

A link and what was measured over it are one verdict, and so are a link and a rank that falls behind
in its log: the link says why, the measurement that it is so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median_high
from typing import Any

from tracekit.analysis.network.facts import Peer, Told
from tracekit.analysis.network.measurements import Measured, measured, told_of
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say

__all__ = ["card_findings", "with_late_ranks"]

_SLOW, _VERY_SLOW = 0.5, 0.1
"""Below such a part of what the same card does elsewhere a card is slow."""
_COMPARED = 3
"""Healthy hosts that a slow one is measured against."""

_Card = tuple[float, float, Peer, Mapping[str, Any]]
"""Its speed in GB/s, the usual one, who told, and what."""


def card_findings(told: Told, where: str) -> Iterator[Finding]:
    """Slow links and missing cards; ``where`` is how the files are called in advised commands."""
    for (host, name), slow in sorted(_slow_cards(told).items()):
        yield _slow_card(told, host, name, slow, where)
    yield from _missing_cards(told)


def _slow_cards(told: Told) -> dict[tuple[str, str], list[_Card]]:
    """Cards by host and name that are slower than the ones of the same name on other hosts."""
    speeds: dict[str, list[tuple[float, Peer, Mapping[str, Any]]]] = {}
    for peer in told.peers:
        for card in peer.network.get("hcas") or ():
            speed = card.get("speed_gbs")
            if isinstance(speed, (int, float)):
                speeds.setdefault(str(card.get("name")), []).append((speed, peer, card))
    usual_of_all = [speed for listed in speeds.values() for speed, _, _ in listed]
    found: dict[tuple[str, str], list[_Card]] = {}
    for name, listed in speeds.items():
        alone = len({peer.host for _, peer, _ in listed}) < 2
        usual = median_high(usual_of_all if alone else [speed for speed, _, _ in listed])
        for speed, peer, card in listed:
            if speed < _SLOW * usual and not (alone and len(told.hosts) < 2):
                found.setdefault((peer.host, name), []).append((speed, usual, peer, card))
    return found


def _slow_card(
    told: Told, host: str, name: str, slow: Sequence[_Card], where: str
) -> Finding:  # fmt: skip
    speed, usual, _, card = slow[0]
    ranks = told.ranks(_users(slow))
    by = measured(told, host)
    denied = by is not None and by.denies
    link = say(
        "net.slow_nic", card=name, port=card.get("port") or 1, host=host,
        ranks=ranks_words(ranks) if ranks else host, speed=_speed(speed), usual=_speed(usual),
    )  # fmt: skip
    lines = _lines([(str(card.get("source") or ""), f"speed {_speed(speed)}")])
    return Finding(
        "comm.slow_nic",
        Severity.WARNING if denied or speed >= _VERY_SLOW * usual else Severity.CRITICAL,
        Certainty.CANNOT_TELL if denied else Certainty.PROVEN,
        _with_measurement(link, by),
        ranks=ranks,
        evidence={
            "class": "net_port",
            "host": host,
            "card": name,
            "port": card.get("port"),
            "speed_gbs": speed,
            "usual_gbs": usual,
            "measured": told_of(by),
            "lines": [*lines, *(by.lines if by is not None else ())],
        },
        advice=(
            say("advice.net.link", host=host, card=name, port=card.get("port") or 1),
            say("advice.net.ib_write", host=host, card=name),
            *(() if by is not None else _pairwise(told, host, name, card.get("port") or 1, where)),
        ),
    )


def _users(slow: Sequence[_Card]) -> list[Peer]:
    """The processes whose connections use a card; all that have it where none says which."""
    using = [
        peer for _, _, peer, card in slow
        if card.get("index") in (peer.network.get("net_devices") or ())
    ]  # fmt: skip
    return using or [peer for _, _, peer, _ in slow]


def _with_measurement(link: str, by: Measured | None) -> str:
    if by is None:
        return link
    if by.confirms or by.denies:
        key = "net.slow_nic.measured" if by.confirms else "net.slow_nic.denied"
        return say(key, link=link, test=by.test, best=by.best, usual=by.usual, count=len(by.own))
    return say("net.slow_nic.open", link=link, test=by.test)


def _pairwise(told: Told, host: str, card: str, port: Any, where: str) -> tuple[str, ...]:
    """The runs that tell whether this host is slow: with some others, and these with each other."""
    healthy = [other for other in told.hosts if other != host][:_COMPARED]
    if len(healthy) < 2:
        return (say("advice.net.pairwise", host=host),)
    pairs = " ".join(",".join(pair) for pair in combinations([host, *healthy], 2))
    return (say("advice.net.pairwise.exact", pairs=pairs, card=card, port=port, where=where),)


def _speed(gbs: float) -> str:
    """A rate as people call links: in bits."""
    return f"{gbs * 8:g} Gb/s" if gbs * 8 >= 1 else f"{gbs * 8000:g} Mb/s"


def _lines(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Evidence as people look it up: the place, then what stands there."""
    return [f"{source}: {text}" if text else source for source, text in pairs if source][:8]


def _missing_cards(told: Told) -> Iterator[Finding]:
    counts: dict[str, int] = {}
    source: dict[str, str] = {}
    for peer in told.peers:
        if peer.network.get("transport") not in (None, "Socket"):
            cards = [c for c in peer.network.get("hcas") or () if c.get("link") != "NET"]
            counts[peer.host] = max(counts.get(peer.host, 0), len(cards))
            source[peer.host] = peer.network_source
    told_of = {host: count for host, count in counts.items() if count}
    if len(told_of) < 2 or len(set(told_of.values())) < 2:
        return
    most = max(told_of.values())
    fewer = sorted(host for host, count in told_of.items() if count < most)
    ignored = any(p.environment.get("NCCL_IGNORE_NET_MISMATCH") == "1" for p in told.peers)
    yield Finding(
        "comm.slow_nic",
        Severity.WARNING,
        Certainty.PROVEN,
        say("net.fewer_cards", hosts=", ".join(fewer[:4]), count=told_of[fewer[0]], most=most),
        ranks=told.ranks(p for p in told.peers if p.host in fewer),
        evidence={
            "class": "net_port",
            "cards": told_of,
            "check_disabled": ignored,
            "lines": _lines((source[host], f"{told_of[host]} cards") for host in fewer[:4]),
        },
        advice=(say("advice.net.cards", host=fewer[0]), say("advice.net.measure")),
    )


# One verdict


def with_late_ranks(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, where a rank that falls behind in its log and its slow link are one.

    That the link is slow is known; that it is why the rank is late is likely, and proven once a
    measurement confirms it. What pairs of hosts measured is then no finding of its own.
    """
    links = {
        place: finding for place, finding in enumerate(findings)
        if finding.id == "comm.slow_nic" and finding.evidence.get("card")
    }  # fmt: skip
    joined = list(findings)
    absorbed: set[int] = set()
    for place, finding in enumerate(findings):
        if _is_late_log(finding):
            of = next((at for at, link in links.items() if finding.ranks[0] in link.ranks), None)
            if of is not None:
                joined[of] = _late_link(joined[of], finding)
                absorbed.add(place)
        elif finding.id == "comm.bandwidth" and len(finding.evidence.get("hosts") or ()) == 1:
            (host,) = finding.evidence["hosts"]
            told = [link.evidence.get("host") for link in links.values()]
            told += [
                one.evidence["hosts"][0] for one in findings
                if one.id == "comm.socket_fallback" and one.evidence.get("measured")
            ]  # fmt: skip
            if host in told:
                absorbed.add(place)
    return [finding for place, finding in enumerate(joined) if place not in absorbed]


def _is_late_log(finding: Finding) -> bool:
    about = finding.evidence
    return finding.id == "straggler.rank" and bool(about.get("at")) and "before_ms" in about


def _late_link(link: Finding, late: Finding) -> Finding:
    about = late.evidence
    verdict = (link.evidence.get("measured") or {}).get("verdict")
    certainty = {
        None: Certainty.LIKELY, "open": Certainty.LIKELY, "confirmed": Certainty.PROVEN,
    }.get(verdict, Certainty.CANNOT_TELL)  # fmt: skip
    seconds = (about["ms"] - about["before_ms"]) / 1e3
    return replace(
        link,
        certainty=certainty,
        title=say(
            "net.late_link", rank=late.ranks[0], seconds=seconds, text=about["at"],
            source=about["source"], link=link.title,
        ),
        ranks=late.ranks,
        lost_ms=seconds * 1e3,
        evidence={
            **link.evidence,
            "ranks_of_card": list(link.ranks),
            "drift_ms": about["ms"] - about["before_ms"],
            "drift_error_ms": about.get("error_ms"),
            "drift_at": about["at"],
            "lines": [f"{about['source']}: {about['at']}", *link.evidence.get("lines", ())],
        },
        cause="slow_link",
    )  # fmt: skip
