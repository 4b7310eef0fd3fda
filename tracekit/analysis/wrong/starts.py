"""Whether replicas of one model began alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tracekit.analysis.record import Record
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say

__all__ = ["start_findings"]


def start_findings(record: Record) -> Iterator[Finding]:
    """Replicas whose parameters differed when they were first looked at.

    That is before anything made them equal, where tracing begins before the model is wrapped.
    """
    for ranks in record.peers.sets if record.peers.replicas else ():
        told = {rank: record.facts.of(rank).last("initial_parameters") for rank in ranks}
        sums = {rank: one["checksum"] for rank, one in told.items() if one.get("checksum")}
        if len(set(sums.values())) < 2:
            continue
        usual = Counter(sums.values()).most_common(1)[0][0]
        odd = tuple(rank for rank, found in sums.items() if found != usual)
        wrapped = all(record.facts.of(rank).told("ddp") for rank in sums)
        yield Finding(
            "config.seed",
            Severity.INFO if wrapped else Severity.WARNING,
            Certainty.CANNOT_TELL,
            say(
                "config.seed.wrapped" if wrapped else "config.seed.parameters",
                ranks=ranks_words(sorted(sums)),
            ),
            ranks=tuple(sorted(sums)),
            evidence={
                "checksums": {str(rank): found for rank, found in list(sums.items())[:64]},
                "differ_from_most": list(odd),
                "made_equal_when_wrapped": wrapped,
            },
            advice=(say("advice.seed.wrapped" if wrapped else "advice.seed.parameters"),),
        )
