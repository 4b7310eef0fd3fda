"""Findings about the network of a job: which way its traffic goes, and where that is slow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tracekit.analysis.network.errors import error_findings, roots
from tracekit.analysis.network.facts import Peer, Told, read_told
from tracekit.analysis.network.hangs import hang_findings
from tracekit.analysis.network.inspector import inspector_findings
from tracekit.analysis.network.links import card_findings
from tracekit.analysis.network.measurements import measured, test_findings, told_of
from tracekit.analysis.network.ras import ras_findings
from tracekit.analysis.record import Record
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say

__all__ = ["network_findings", "symptom_of"]

_BRIDGES = ("docker", "virbr", "lo", "br-", "veth", "cni", "flannel")
_OWN = ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_TOPO", "NCCL_GRAPH", "NCCL_COMM_ID",
        "NCCL_HOSTID", "NCCL_IB_HCA")  # fmt: skip
"""Settings that may differ between hosts with good reason."""


def network_findings(record: Record) -> Iterator[Finding]:
    """What logs of the communication library tell of errors, start-up, transports and links."""
    told = read_told(record.engine, record.attempt)
    if told.tests:
        yield from test_findings(told)
    if told.bandwidths:
        yield from inspector_findings(told, record.options)
    if told.looks:
        yield from ras_findings(told, record.options)
    if not told.peers and not told.notices:
        return
    failed = roots(told)
    yield from error_findings(told, failed)
    yield from hang_findings(told, failed)
    yield from _versions(told, bool(failed))
    yield from _settings(told, failed)
    yield from _fallback(told)
    yield from _direct(told)
    yield from card_findings(told, record.where)
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
    title = say(key, **told_values)
    by = measured(told, by_socket[0].host) if others else None
    if by is not None and by.confirms:
        values = {"test": by.test, "best": by.best, "usual": by.usual}
        title = say("net.fallback.measured", told=title, times=by.usual / by.best, **values)
    yield Finding(
        "comm.socket_fallback",
        Severity.WARNING if lost else Severity.INFO,
        Certainty.PROVEN if used or others else Certainty.LIKELY,
        title,
        ranks=told.ranks(by_socket) if others else (),
        evidence={
            "class": "net_socket",
            "hosts": sorted({p.host for p in by_socket}),
            "reason": why.text if why else None,
            "measured": told_of(by),
            "lines": [
                *_lines(
                    [(n.source, n.text) for n in reasons[:2]]
                    + [(p.network_source, "Using network Socket") for p in by_socket[:3]]
                ),
                *(by.lines if by is not None else ()),
            ],
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


# Interfaces and jobs


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
