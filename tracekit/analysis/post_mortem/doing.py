"""What a rank that did not come is doing instead, and whether it gets ahead."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.analysis.basis.ends import End
from tracekit.analysis.post_mortem.stalls import Culprit
from tracekit.findings import Words, say

__all__ = ["doing_words", "fewer", "progress_evidence"]

_LONG, _WORTH_NS = 2.0, 1e9
"""How many times as long as others took is worth a word, if others took as long as that."""


def fewer(end: End | None, waiting: Sequence[End]) -> dict[str, tuple[float, float]]:
    """What all who wait have counted equally far and this rank less: its number and theirs."""
    found: dict[str, tuple[float, float]] = {}
    for name, own in end.tallies.items() if end else ():
        theirs = {other.tallies.get(name) for other in waiting}
        most = theirs.pop() if len(theirs) == 1 else None
        if most is not None and own < most:
            found[name] = own, most
    return found


def progress_evidence(end: End | None) -> dict[str, object]:
    """What a rank counts, and how long others took for what it is in."""
    counter, usual = (end.counter, end.usual_ns) if end else (None, None)
    told: dict[str, object] = {} if usual is None else {"others_took_s": usual / 1e9}
    if counter is not None:
        told["counter"] = {
            "name": counter.name, "value": counter.value, "rose_ns": counter.rose_ns,
            "told_ns": counter.told_ns,
        }  # fmt: skip
    return told


def doing_words(culprit: Culprit, end: End | None) -> Words:
    """What a rank that did not come is doing, since when, and whether it gets ahead."""
    now = end.time_ns if end else 0
    inside = culprit.inside
    values: dict[str, object]
    if inside is not None and inside.kind != "step":
        values = {"name": inside.name, "seconds": (now - inside.start_ns) / 1e9}
        key = "doing.in"
    elif end is not None and end.last_span is not None and end.last_end_ns is not None:
        values = {"name": end.last_span, "seconds": max(0.0, (now - end.last_end_ns) / 1e9)}
        key = "doing.last"
    else:
        return say("doing.nothing")
    if culprit.frame:
        key = "doing.frame" if key == "doing.in" else "doing.last_frame"
        values["frame"] = culprit.frame
    doing = say(key, **values)
    if end is None or inside is None or inside.kind == "step":
        return doing
    took = now - inside.start_ns
    if end.usual_ns and end.usual_ns >= _WORTH_NS and took >= _LONG * end.usual_ns:
        times = took / end.usual_ns
        doing = say("doing.usual", doing=doing, times=times, seconds=end.usual_ns / 1e9)
    if end.counter is not None:
        rises = "rises" if culprit.state == "slow" else "stands"
        seconds = (now - end.counter.rose_ns) / 1e9
        told = {"name": end.counter.name, "value": end.counter.value, "seconds": seconds}
        doing = say(f"doing.{rises}", doing=doing, **told)
    return doing
