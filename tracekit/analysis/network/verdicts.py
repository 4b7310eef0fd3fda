"""Findings about the network of a job: which way its traffic goes, and where that is slow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median_high
from typing import Any

from tracekit.analysis.network.errors import error_findings, roots
from tracekit.analysis.network.facts import Peer, Told, read_told
from tracekit.analysis.network.hangs import hang_findings
from tracekit.analysis.network.measurements import test_findings
from tracekit.analysis.record import Record
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say

__all__ = ["network_findings", "symptom_of"]

_SLOW, _VERY_SLOW = 0.5, 0.1
"""Below such a part of what the same card does elsewhere a card is slow."""
_BRIDGES = ("docker", "virbr", "lo", "br-", "veth", "cni", "flannel")
_OWN = ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_TOPO", "NCCL_GRAPH", "NCCL_COMM_ID",
        "NCCL_HOSTID", "NCCL_IB_HCA")  # fmt: skip
"""Settings that may differ between hosts with good reason."""


def network_findings(record: Record) -> Iterator[Finding]:
    """What logs of the communication library tell of errors, start-up, transports and links."""
    told = read_told(record.engine, record.attempt)
    if told.tests:
        yield from test_findings(told)
    if not told.peers and not told.notices:
        return
    failed = roots(told)
    yield from error_findings(told, failed)
    yield from hang_findings(told, failed)
    yield from _versions(told, bool(failed))
    yield from _settings(told, failed)
    yield from _fallback(told)
    yield from _direct(told)
    yield from _slow_cards(told)
    yield from _missing_cards(told)
    yield from _interfaces(told)
    yield from _jobs(told)


def symptom_of(finding: Finding) -> str | None:
    """What became of the job by a finding about its end; None where it is about something else."""
    if finding.id.startswith("hang."):
        return "hang"
    if finding.id == "crash.oom":
        return "oom"
    if finding.id.startswith(("crash.", "host.")):
        return "crash"
    if finding.id == "comm.error":
        return "crash" if finding.severity is Severity.CRITICAL else "abnormal"
    return None


def _lines(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Evidence as people look it up: the place, then what stands there."""
    return [f"{source}: {text}" if text else source for source, text in pairs if source][:8]


# Versions and settings


def _versions(told: Told, failed: bool) -> Iterator[Finding]:
    found: dict[str, list[Peer]] = {}
    for peer in told.peers:
        if peer.version:
            found.setdefault(peer.version, []).append(peer)
    if len(found) < 2:
        return
    listed = ", ".join(
        f"{version} ({_who(told, peers)})" for version, peers in sorted(found.items())
    )
    fewest = min(found.values(), key=len)
    yield Finding(
        "config.versions",
        Severity.CRITICAL if failed else Severity.WARNING,
        Certainty.PROVEN,
        say("net.versions", listed=listed),
        ranks=told.ranks(fewest),
        evidence={
            "class": "versions",
            "versions": {version: list(told.ranks(peers)) for version, peers in found.items()},
            "lines": _lines((peers[0].version_source, v) for v, peers in sorted(found.items())),
        },
        advice=(say("advice.net.versions"),),
    )


def _who(told: Told, peers: Iterable[Peer]) -> str:
    listed = list(peers)
    ranks = told.ranks(listed)
    return str(ranks_words(ranks)) if ranks else ", ".join(sorted({p.host for p in listed})[:4])


def _settings(told: Told, failed: Mapping[str, Any]) -> Iterator[Finding]:
    """Settings that differ between ranks; worth more than a remark only beside a mismatch."""
    with_any = [peer for peer in told.peers if peer.environment or peer.process.get("stage")]
    names = sorted({name for peer in with_any for name in peer.environment})
    different: dict[str, dict[str, list[int]]] = {}
    for name in names:
        if name.startswith(_OWN):
            continue
        values: dict[str, list[int]] = {}
        for peer in with_any:
            value = peer.environment.get(name, "not set")
            values.setdefault(value, []).extend(told.ranks([peer]))
        if len(values) > 1:
            different[name] = values
    if not different:
        return
    yield Finding(
        "config.env",
        Severity.WARNING if "mismatch" in failed else Severity.INFO,
        Certainty.PROVEN,
        say("net.settings", listed=", ".join(different)),
        ranks=tuple(sorted({r for v in different.values() for r in min(v.values(), key=len)})),
        evidence={
            "settings": different,
            "lines": _lines((peer.environment_source, "") for peer in with_any[:4]),
        },
        advice=(say("advice.net.settings"),),
    )


# Transports


def _fallback(told: Told) -> Iterator[Finding]:
    by_socket = [p for p in told.peers if p.network.get("transport") == "Socket"]
    others = [p for p in told.peers if p.network.get("transport") not in (None, "Socket")]
    if not by_socket or not told.spans_hosts:
        return
    reasons = [n for n in told.notices if n.cause == "net_socket"]
    why = reasons[0] if reasons else None
    over_ib = [p for p in by_socket if _interface(p).startswith("ib")]
    disabled = [p for p in by_socket if p.environment.get("NCCL_IB_DISABLE") == "1"]
    no_card = why is not None and "No device found" in why.text
    used = any("Socket" in (p.network.get("net_kinds") or ()) for p in by_socket)
    lost = bool(others or over_ib or (why is not None and not no_card))
    key = (
        "net.fallback.some" if others
        else "net.fallback.disabled" if disabled
        else "net.fallback.reason" if why is not None and not no_card
        else "net.fallback.ipoib" if over_ib
        else "net.fallback"
    )  # fmt: skip
    told_values = {
        "who": _who(told, by_socket) if others else say("net.all"),
        "interface": _interface(by_socket[0]) or say("net.an_interface"),
        "others": others[0].network.get("transport") if others else "",
        "reason": why.text[:120] if why else "",
    }
    yield Finding(
        "comm.socket_fallback",
        Severity.WARNING if lost else Severity.INFO,
        Certainty.PROVEN if used or others else Certainty.LIKELY,
        say(key, **told_values),
        ranks=told.ranks(by_socket) if others else (),
        evidence={
            "class": "net_socket",
            "hosts": sorted({p.host for p in by_socket}),
            "reason": why.text if why else None,
            "lines": _lines(
                [(n.source, n.text) for n in reasons[:2]]
                + [(p.network_source, "Using network Socket") for p in by_socket[:3]]
            ),
        },
        advice=(
            say("advice.net.unset" if disabled else "advice.net.hardware", host=by_socket[0].host),
            say("advice.net.measure"),
        ),
    )


def _interface(peer: Peer) -> str:
    sockets = peer.network.get("sockets") or [peer.network.get("socket_if") or ""]
    return str(sockets[0]).partition(":")[0]


def _direct(told: Told) -> Iterator[Finding]:
    """GPU Direct RDMA: off on a card, or on no connection over the network."""
    by_card = [
        p for p in told.peers
        if p.network.get("gdr_hcas") and not any(p.network["gdr_hcas"].values())
    ]  # fmt: skip
    nets = [p for p in told.peers if _over_net(p)]
    through_host = [p for p in nets if not (p.network.get("net") or {}).get("gdr")]
    with_it = [p for p in nets if (p.network.get("net") or {}).get("gdr")]
    off = through_host or ([] if with_it or not told.spans_hosts else by_card)
    if not off:
        return
    effect = bool(through_host)
    mixed = bool(effect and with_it)
    serious = mixed or (effect and bool(by_card))
    yield Finding(
        "comm.gdr_off",
        Severity.WARNING if serious else Severity.INFO,
        Certainty.PROVEN if effect else Certainty.LIKELY,
        say(
            "net.gdr.some" if mixed else "net.gdr" if effect else "net.gdr.card",
            who=_who(told, off), hosts=", ".join(sorted({p.host for p in off})[:4]),
        ),
        ranks=told.ranks(off) if mixed else (),
        evidence={
            "class": "net_gdr",
            "hosts": sorted({p.host for p in off}),
            "lines": _lines(
                [(str(p.network.get("gdr_source") or ""), "GPU Direct RDMA Disabled")
                 for p in by_card[:2]]
                + [(str(p.network.get("net_source") or ""), "via NET without GDRDMA")
                   for p in through_host[:3]]
            ),
        },
        advice=(say("advice.net.gdr", host=off[0].host), say("advice.net.gdr.measure")),
    )  # fmt: skip


def _over_net(peer: Peer) -> bool:
    """Whether it has connections over a network that could reach the GPU by itself."""
    kinds = set(peer.network.get("net_kinds") or ())
    return bool((peer.network.get("net") or {}).get("all")) and bool(kinds - {"Socket"})


# Links


def _slow_cards(told: Told) -> Iterator[Finding]:
    """Cards that are slower than the ones of the same name on other hosts."""
    speeds: dict[str, list[tuple[float, Peer, Mapping[str, Any]]]] = {}
    for peer in told.peers:
        for card in peer.network.get("hcas") or ():
            speed = card.get("speed_gbs")
            if isinstance(speed, (int, float)):
                speeds.setdefault(str(card.get("name")), []).append((speed, peer, card))
    usual_of_all = [speed for listed in speeds.values() for speed, _, _ in listed]
    found: dict[tuple[str, str], list[tuple[float, float, Peer, Mapping[str, Any]]]] = {}
    for name, listed in speeds.items():
        alone = len({peer.host for _, peer, _ in listed}) < 2
        usual = median_high(usual_of_all if alone else [speed for speed, _, _ in listed])
        for speed, peer, card in listed:
            if speed < _SLOW * usual and not (alone and len(told.hosts) < 2):
                found.setdefault((peer.host, name), []).append((speed, usual, peer, card))
    for (host, name), slow in sorted(found.items()):
        speed, usual, _, card = slow[0]
        ranks = told.ranks(peer for _, _, peer, _ in slow)
        yield Finding(
            "comm.slow_nic",
            Severity.CRITICAL if speed < _VERY_SLOW * usual else Severity.WARNING,
            Certainty.PROVEN,
            say(
                "net.slow_nic", card=name, host=host,
                ranks=ranks_words(ranks) if ranks else host,
                speed=_speed(speed), usual=_speed(usual),
            ),
            ranks=ranks,
            evidence={
                "class": "net_port",
                "host": host,
                "card": name,
                "speed_gbs": speed,
                "usual_gbs": usual,
                "lines": _lines([(str(card.get("source") or ""), f"speed {_speed(speed)}")]),
            },
            advice=(
                say("advice.net.link", host=host, card=name, port=card.get("port") or 1),
                say("advice.net.ib_write", host=host, card=name),
                say("advice.net.pairwise", host=host),
            ),
        )  # fmt: skip


def _speed(gbs: float) -> str:
    """A rate as people call links: in bits."""
    return f"{gbs * 8:g} Gb/s" if gbs * 8 >= 1 else f"{gbs * 8000:g} Mb/s"


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


def _interfaces(told: Told) -> Iterator[Finding]:
    """Interfaces that lead to no other host."""
    if not told.spans_hosts:
        return
    bad = [p for p in told.peers if str(p.network.get("socket_if") or "").startswith(_BRIDGES)]
    if bad:
        yield Finding(
            "comm.error",
            Severity.WARNING,
            Certainty.LIKELY,
            say(
                "net.interface", who=_who(told, bad), interface=bad[0].network["socket_if"],
                address=bad[0].network.get("address") or "",
            ),
            ranks=told.ranks(bad),
            evidence={
                "class": "net_interface",
                "lines": _lines((str(p.network.get("bootstrap_source")), "") for p in bad[:4]),
            },
            advice=(say("advice.net.interface"),),
        )  # fmt: skip


def _jobs(told: Told) -> Iterator[Finding]:
    if told.jobs.get("mixed"):
        yield Finding(
            "coverage.partial",
            Severity.INFO,
            Certainty.LIKELY,
            say("net.jobs", count=len(told.jobs.get("jobs") or ())),
            evidence={"jobs": told.jobs.get("jobs")},
        )
