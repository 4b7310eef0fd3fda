"""With what the ranks really trained: strategy, devices, communication, versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tracekit.analysis.queries import query
from tracekit.analysis.record import Record, number, text_of
from tracekit.analysis.wrong.replicas import strategies_of
from tracekit.findings.result import Setup

__all__ = ["setup_of"]

_FRAMEWORKS = ("torch", "tensorflow")


def setup_of(record: Record) -> Setup | None:
    """What ranks say that they trained with; None where they say nothing."""
    strategies = strategies_of(record)
    devices: Counter[str] = Counter()
    versions: dict[str, set[str]] = {}
    for rank in record.ranks:
        of, told = record.facts.of(rank), strategies.get(rank, {})
        devices.update(_devices(told.get("devices"), of.last("device").get("device")))
        for name in _FRAMEWORKS:
            text = text_of(of.last("versions").get(name)) or text_of(told.get(name))
            if text:
                versions.setdefault(name, set()).add(text)
        if keras := text_of(told.get("keras")):
            name, _, text = keras.partition(" ")
            versions.setdefault(name, set()).add(text or "?")
    if not devices and not versions and not strategies:
        return None
    counts = [
        (number(one.get("replicas")), number(one.get("workers"))) for one in strategies.values()
    ]
    asked = {_carrier(one) for one in strategies.values()}
    used = set() if strategies else set(record.facts.backends.values())
    return Setup(
        ", ".join(sorted({text_of(one.get("class")) for one in strategies.values()} - {""}))
        or None,
        max((replicas for replicas, _ in counts if replicas), default=None),
        max((workers for _, workers in counts if workers), default=None),
        dict(sorted(devices.items())),
        tuple(sorted((asked | used) - {""})),
        _seen_on(record) if strategies else (),
        {name: ", ".join(sorted(found)) for name, found in versions.items()},
    )


def _carrier(told: Mapping[str, Any]) -> str:
    """What carries collectives: of AUTO what it comes to, where nothing else is possible."""
    asked, listed = text_of(told.get("implementation")), told.get("devices")
    kinds = set(_devices(listed, None)) if isinstance(listed, list) else set()
    if asked.upper() == "AUTO" and kinds == {"CPU"}:
        return "RING (AUTO on CPUs)"
    return asked


def _devices(listed: object, one: object) -> Iterable[str]:
    """The kinds of a rank's devices, one name for each."""
    if isinstance(listed, list) and listed:
        for name in listed:
            parts = [part for part in str(name).upper().split(":") if part.isalpha()]
            yield parts[-1] if parts else str(name)
    elif isinstance(one, str) and one:
        yield one.partition(":")[0].upper()


def _seen_on(record: Record) -> tuple[str, ...]:
    """Where collectives were seen to run, host or device; empty where none was looked at."""
    rows = record.engine.sql(query("carriers", attempt=record.attempt)).to_pylist()
    return tuple(sorted({str(row["clock"]) for row in rows}))
