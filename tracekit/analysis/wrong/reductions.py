"""Values of which each replica has its own: whether they are put together, and how."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analysis.queries import query
from tracekit.analysis.record import Record, number, text_of
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say

__all__ = ["reduction_findings"]

_IS_MEAN = re.compile(r"acc|auc|precision|recall|mean|avg|average|rate$", re.IGNORECASE)
_AT_MOST_ONE = re.compile(r"acc|auc|precision|recall", re.IGNORECASE)
_LEAST_STEPS = 5
_MISUSED = "PerReplica"
_NAMELESS = ("", "value")
"""Values of which nobody knows what they are: libraries reduce some of their own."""


def reduction_findings(record: Record) -> Iterator[Finding]:
    """Values that were never reduced, summed though they are means, or used as if they were one."""
    yield from _misused(record)
    told: dict[str, dict[int, Mapping[str, Any]]] = {}
    for rank in record.ranks:
        for one in record.facts.of(rank).told("reduction"):
            name = text_of(one.get("value"))
            known = name not in _NAMELESS or one.get("mean") is not None
            if (
                known
                and one.get("per_replica") is not False
                and (number(one.get("replicas")) or 0) > 1
            ):
                told.setdefault(name or "a value", {})[rank] = one
    for value, by_rank in told.items():
        how = {str(one.get("reduced") or "none").upper() for one in by_rank.values()}
        if how == {"NONE"}:
            yield _never(value, by_rank)
        elif "SUM" in how:
            yield from _summed(record, value, by_rank)


def _misused(record: Record) -> Iterator[Finding]:
    """An error that says that values of several replicas were used like one."""
    for rank, end in record.ends.items():
        error = end.error or ""
        if end.is_bad and _MISUSED in error and "unsupported type" not in error:
            yield Finding(
                "config.reduction",
                Severity.WARNING,
                Certainty.PROVEN,
                say("config.reduction.misused", rank=rank),
                ranks=(rank,),
                evidence={"error": error[:300], "frame": end.frame},
                advice=(say("advice.reduction.local"),),
            )


def _never(value: str, by_rank: Mapping[int, Mapping[str, Any]]) -> Finding:
    """Each worker goes on with its own; perhaps on purpose."""
    replicas = max(number(one.get("replicas")) or 0 for one in by_rank.values())
    return Finding(
        "config.reduction",
        Severity.INFO,
        Certainty.CANNOT_TELL,
        say("config.reduction.never", value=value, replicas=replicas),
        ranks=tuple(sorted(by_rank)),
        evidence={"value": value, "replicas": replicas, "reduced": "none"},
        advice=(say("advice.reduction.mean", value=value),),
    )


def _summed(
    record: Record, value: str, by_rank: Mapping[int, Mapping[str, Any]]
) -> Iterator[Finding]:
    """A sum is right of parts and N times too large of means: what shows which it is?"""
    ranks = tuple(sorted(by_rank))
    replicas = max(number(one.get("replicas")) or 0 for one in by_rank.values())
    evidence: dict[str, Any] = {"value": value, "replicas": replicas, "reduced": "SUM"}
    severity, certainty = Severity.INFO, Certainty.CANNOT_TELL
    key, advice = "summed.perhaps", "advice.reduction.check"
    over = _beyond_one(record, value) if _AT_MOST_ONE.search(value) else None
    twin = _twin(record, value, replicas)
    if over is not None:
        severity, certainty, key = Severity.WARNING, Certainty.PROVEN, "summed"
        evidence["largest"] = over
    elif twin is not None:
        severity, certainty, key = Severity.WARNING, Certainty.LIKELY, "summed"
        evidence["same_value"], evidence["ratio"] = twin
    elif any(one.get("mean") is True for one in by_rank.values()) or _means(value):
        severity, certainty, key = Severity.WARNING, Certainty.LIKELY, "summed"
        evidence["mean_on_each_replica"] = True
    elif any(one.get("mean") is False for one in by_rank.values()):
        return  # something was divided after it was added up
    if key == "summed":
        advice = "advice.reduction.mean"
    yield Finding(
        "config.reduction",
        severity,
        certainty,
        say(f"config.reduction.{key}", value=value, replicas=replicas, ranks=ranks_words(ranks)),
        ranks=ranks,
        evidence=evidence,
        advice=(say(advice, value=value),),
    )


def _means(value: str) -> bool:
    """Whether a name says that it is a mean; that of a function says nothing of what it returns."""
    return "()" not in value and _IS_MEAN.search(value) is not None


def _beyond_one(record: Record, value: str) -> float | None:
    """The largest of a value that cannot be more than one, where it is, and no percentage."""
    rows = record.engine.sql(query("series", attempt=record.attempt)).to_pylist()
    found = [row["largest"] for row in rows if row["name"] == value]
    largest = max(found, default=0.0)
    return float(largest) if 1.001 < largest < 50 else None


def _twin(record: Record, value: str, replicas: int) -> tuple[str, float] | None:
    """Another record of the same value that is N times smaller, step after step."""
    rows = record.engine.sql(query("losses", attempt=record.attempt)).to_pylist()
    series: dict[str, dict[int, float]] = {}
    for row in rows:
        series.setdefault(row["name"], {})[row["step"]] = row["value"]
    mine = series.pop(value, None) or series.pop("loss", {})
    for name, values in series.items():
        steps = [step for step in mine if values.get(step)]
        if len(steps) < _LEAST_STEPS:
            continue
        ratios = np.array([mine[step] / values[step] for step in steps])
        near = np.abs(ratios / replicas - 1) < record.options.sum_ratio_error
        if np.isfinite(ratios).all() and near.mean() >= 0.8:
            return name, round(float(np.median(ratios)), 3)
    return None
