"""Findings about measurements of the network by nccl-tests: the host that all slow pairs share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_high
from typing import Any

from tracekit.analysis.network.facts import Told
from tracekit.findings import Certainty, Finding, Severity, say

__all__ = ["test_findings"]

_SLOW = 0.7
_FEW = 3
"""Pairs below which nothing tells which host of a slow one it is."""


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
    yield from _pairs(told.tests)


def _hosts(test: Mapping[str, Any]) -> str:
    return ", ".join(test.get("hosts") or ()) or "HOST"


def _pairs(tests: Sequence[tuple[dict[str, Any], str]]) -> Iterator[Finding]:
    """Runs between two hosts each, of one operation: who is in all slow ones and in no fast one."""
    by_test: dict[str, list[tuple[tuple[str, ...], float, str]]] = {}
    for test, source in tests:
        hosts = tuple(sorted(test.get("hosts") or ()))
        speed = test.get("busbw_gbs")
        if len(hosts) == 2 and isinstance(speed, (int, float)) and speed > 0:
            by_test.setdefault(str(test.get("test")), []).append((hosts, float(speed), source))
    for name, runs in sorted(by_test.items()):
        if len(runs) < _FEW:
            continue
        usual = median_high([speed for _, speed, _ in runs])
        best = max(speed for _, speed, _ in runs)
        usual = best if usual < _SLOW * best else usual
        slow = [run for run in runs if run[1] < _SLOW * usual]
        fast = {host for hosts, speed, _ in runs if speed >= _SLOW * usual for host in hosts}
        if not slow:
            continue
        common = set.intersection(*(set(hosts) for hosts, _, _ in slow)) - fast
        named = sorted(common)
        yield Finding(
            "comm.bandwidth",
            Severity.WARNING,
            Certainty.LIKELY if len(named) == 1 else Certainty.CANNOT_TELL,
            say(
                "net.tests.host" if len(named) == 1 else "net.tests.pairs",
                host=named[0] if named else "", count=len(slow), of=len(runs), test=name,
                slow=max(speed for _, speed, _ in slow), usual=usual,
                pairs=", ".join("–".join(hosts) for hosts, _, _ in slow[:4]),
            ),
            evidence={
                "class": "net_port",
                "hosts": named,
                "pairs": [
                    {"hosts": list(hosts), "busbw_gbs": speed} for hosts, speed, _ in runs[:64]
                ],
                "lines": [
                    f"{source}: {'–'.join(hosts)} {speed:g} GB/s" for hosts, speed, source in slow
                ][:8],
            },
            advice=(
                say("advice.net.link", host=named[0] if named else "each of them", card="mlx5_0",
                    port=1),
                say("advice.net.ib_write", host=named[0] if named else "HOST", card="mlx5_0"),
            ),
        )  # fmt: skip
