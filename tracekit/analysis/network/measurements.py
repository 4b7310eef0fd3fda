"""What nccl-tests measured between hosts, and findings from it: the host all slow pairs share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from tracekit.analysis.network.facts import Told
from tracekit.findings import Certainty, Finding, Severity, say

__all__ = ["Measured", "Pair", "measured", "test_findings", "told_of"]

_SLOW = 0.7
_FEW = 3
"""Pairs below which nothing tells which host of a slow one it is."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A run between two hosts, by the bus bandwidth of its largest size."""

    hosts: tuple[str, ...]
    busbw_gbs: float
    source: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What pairs tell of one host."""

    test: str
    own: tuple[Pair, ...]
    """The pairs it is in."""
    others: tuple[Pair, ...]
    usual: float
    """The bandwidth of pairs without it."""

    @property
    def confirms(self) -> bool:
        """Whether it is slow whoever is its partner, and a partner of it is not."""
        fast = {host for pair in self.others if self._is_fast(pair) for host in pair.hosts}
        slow = not any(self._is_fast(pair) for pair in self.own)
        return slow and any(host in fast for pair in self.own for host in pair.hosts)

    @property
    def denies(self) -> bool:
        """Whether it is as fast as the others."""
        return all(self._is_fast(pair) for pair in self.own)

    @property
    def best(self) -> float:
        """The highest bandwidth of a pair it is in."""
        return max(pair.busbw_gbs for pair in self.own)

    def _is_fast(self, pair: Pair) -> bool:
        return pair.busbw_gbs >= _SLOW * self.usual

    @property
    def lines(self) -> list[str]:
        """The pairs as evidence: those it is in first."""
        listed = [*self.own[:4], *self.others[:2]]
        return [f"{p.source}: {'–'.join(p.hosts)} {p.busbw_gbs:g} GB/s" for p in listed]


def measured(told: Told, host: str) -> Measured | None:
    """What pairs tell of a host; None where none has it, or all have."""
    found = []
    for test, pairs in _pairs_by_test(told.tests).items():
        own = tuple(pair for pair in pairs if host in pair.hosts)
        others = tuple(pair for pair in pairs if host not in pair.hosts)
        if own and others:
            usual = median_high([pair.busbw_gbs for pair in others])
            found.append(Measured(test, own, others, usual))
    return max(found, key=lambda one: (one.confirms, len(one.own)), default=None)


def told_of(by: Measured | None) -> dict[str, Any] | None:
    """What pairs tell of a host, as evidence."""
    if by is None:
        return None
    verdict = "confirmed" if by.confirms else "denied" if by.denies else "open"
    return {
        "test": by.test,
        "verdict": verdict,
        "busbw_gbs": [pair.busbw_gbs for pair in by.own],
        "usual_busbw_gbs": by.usual,
    }


def test_findings(told: Told) -> Iterator[Finding]:
    """Wrong results, and pairs that are slower than the others."""
    wrong = [(test, source) for test, source in told.tests if test.get("wrong")]
    if wrong:
        yield Finding(
            "comm.error",
            Severity.CRITICAL,
            Certainty.PROVEN,
            say("net.tests.wrong", count=sum(int(t["wrong"]) for t, _ in wrong),
                test=wrong[0][0].get("test")),
            evidence={"class": "net_acs", "lines": [source for _, source in wrong[:6]]},
            advice=(say("advice.net.acs", host=_hosts(wrong[0][0])),),
        )  # fmt: skip
    for name, pairs in sorted(_pairs_by_test(told.tests).items()):
        if len(pairs) >= _FEW:
            yield from _pairs(name, pairs)


def _hosts(test: Mapping[str, Any]) -> str:
    return ", ".join(test.get("hosts") or ()) or "HOST"


def _pairs_by_test(tests: Sequence[tuple[dict[str, Any], str]]) -> dict[str, list[Pair]]:
    """Runs between two hosts each, by operation."""
    found: dict[str, list[Pair]] = {}
    for test, source in tests:
        hosts = tuple(sorted(test.get("hosts") or ()))
        speed = test.get("busbw_gbs")
        if len(hosts) == 2 and isinstance(speed, (int, float)) and speed > 0:
            found.setdefault(str(test.get("test")), []).append(Pair(hosts, float(speed), source))
    return found


def _pairs(name: str, runs: Sequence[Pair]) -> Iterator[Finding]:
    """Who is in all slow pairs and in no fast one."""
    usual = median_high([pair.busbw_gbs for pair in runs])
    best = max(pair.busbw_gbs for pair in runs)
    usual = best if usual < _SLOW * best else usual
    slow = [pair for pair in runs if pair.busbw_gbs < _SLOW * usual]
    fast = {host for pair in runs if pair.busbw_gbs >= _SLOW * usual for host in pair.hosts}
    if not slow:
        return
    common = set.intersection(*(set(pair.hosts) for pair in slow)) - fast
    named = sorted(common)
    one = len(named) == 1
    yield Finding(
        "comm.bandwidth",
        Severity.WARNING,
        Certainty.LIKELY if one else Certainty.CANNOT_TELL,
        say(
            "net.tests.host" if one else "net.tests.pairs",
            host=named[0] if named else "", count=len(slow), of=len(runs), test=name,
            slow=max(pair.busbw_gbs for pair in slow), usual=usual,
            pairs=", ".join("–".join(pair.hosts) for pair in slow[:4]),
        ),
        evidence={
            "class": "net_port",
            "hosts": named,
            "pairs": [
                {"hosts": list(pair.hosts), "busbw_gbs": pair.busbw_gbs} for pair in runs[:64]
            ],
            "lines": [
                f"{pair.source}: {'–'.join(pair.hosts)} {pair.busbw_gbs:g} GB/s" for pair in slow
            ][:8],
        },
        advice=(
            say("advice.net.link", host=named[0] if named else "each of them", card="mlx5_0",
                port=1),
            say("advice.net.ib_write", host=named[0] if named else "HOST", card="mlx5_0"),
        ),
    )  # fmt: skip
