"""The verdict as one JSON object; its keys are a contract and only ever added to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tracekit.findings import Finding
from tracekit.findings.result import Analysis, RankSummary, StragglerSummary

__all__ = ["json", "json_object"]

SCHEMA = 1


def json(analysis: Analysis) -> bytes:
    """The verdict as JSON in UTF-8, one object and nothing else."""
    return orjson.dumps(json_object(analysis), option=orjson.OPT_SERIALIZE_NUMPY)


def json_object(analysis: Analysis) -> dict[str, Any]:
    """The verdict as plain objects, strings and numbers; never an infinite one or NaN."""
    run, shares = analysis.run, analysis.shares
    whole = {
        "schema": SCHEMA,
        "symptom": analysis.symptom,
        "phase": analysis.phase,
        "run": asdict(run),
        "questions": asdict(analysis.questions),
        "clock": {
            "aligned": analysis.clock.aligned,
            "error_us": analysis.clock.error_us,
            "domains": [asdict(domain) for domain in analysis.clock.domains],
        },
        "step_ms": asdict(analysis.step_ms) if analysis.step_ms else None,
        "throughput": {"samples_per_s": analysis.samples_per_s},
        "shares": asdict(shares) if shares else None,
        "ranks": [_rank(rank) for rank in analysis.ranks],
        "stragglers": [_straggler(one) for one in analysis.stragglers],
        "what_if": asdict(analysis.what_if) if analysis.what_if else None,
        "collectives": [asdict(one) for one in analysis.collectives],
        "setup": asdict(analysis.setup) if analysis.setup else None,
        "overhead": asdict(analysis.overhead) if analysis.overhead else None,
        "coverage": _coverage(analysis),
        "findings": [_finding(finding) for finding in analysis.findings],
    }
    plain: dict[str, Any] = _plain(whole)
    return plain


def _rank(rank: RankSummary) -> dict[str, Any]:
    entry = asdict(rank)
    if rank.device is None:
        del entry["device"]
    return entry


def _straggler(one: StragglerSummary) -> dict[str, Any]:
    entry = asdict(one)
    entry["class"] = entry.pop("kind")
    return entry


def _coverage(analysis: Analysis) -> dict[str, Any]:
    coverage = analysis.coverage
    return {
        "files": coverage.files,
        "skipped": [{"path": str(path), "reason": reason} for path, reason in coverage.skipped],
        "dropped_spans": coverage.dropped_spans,
        "open_spans": coverage.open_spans,
        "torn_slots": coverage.torn_slots,
        "missing_ranks": list(analysis.run.missing_ranks),
        "duplicate_ranks": dict(coverage.duplicate_ranks),
        "elsewhere": dict(coverage.elsewhere),
        "exports": [dict(one) for one in coverage.exports],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": finding.id,
        "severity": finding.severity.value,
        "certainty": finding.certainty.value,
        "title": finding.title,
        "ranks": list(finding.ranks),
        "steps": list(finding.steps) if finding.steps is not None else None,
        "lost_ms": finding.lost_ms,
        "evidence": finding.evidence,
        "advice": list(finding.advice),
        "class": finding.evidence.get("class"),
        "lines": list(finding.evidence.get("lines") or ()),
        "next": finding.advice[0] if finding.advice else None,
    }
    if finding.rules is not None:
        entry["rules"] = list(finding.rules)
        entry["imposed_wait_ms"] = finding.imposed_wait_ms
        entry["p"] = finding.p
        entry["cause"] = finding.cause
    return entry


def _plain(value: Any) -> Any:
    """Values as JSON has them: words become strings, NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, (str, Path)):
        return str(value)
    if isinstance(value, (bool, int)) or value is None:
        return value
    if isinstance(value, np.generic):
        return _plain(value.item())
    number = float(value)
    return number if np.isfinite(number) else None
