"""Who trains together: whether as many replicas share a model as there could be, or should."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.analysis.basis.ends import End
from tracekit.analysis.record import Record, number, text_of
from tracekit.analysis.wrong.cluster import seats_of
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say

__all__ = ["replica_findings", "strategies_of"]

_SERVED = "parameterserver"
_MIRRORED_BY_WORKERS = ("multiworker", "collectiveallreduce")
_MAJOR = re.compile(r"keras (\d+)")


def replica_findings(record: Record) -> Iterator[Finding]:
    """Processes, workers and devices that do not train with the others."""
    strategies = strategies_of(record)
    yield from _alone(record, strategies)
    yield from _told_nothing(record, strategies)
    if not any(told.get("joined_by") for told in strategies.values()):
        yield from _strangers(record)
    yield from _one_rank_many_times(record)
    yield from _idle_devices(record, strategies)
    yield from _unused_parts(strategies)
    yield from _unequal(record, strategies)
    yield from _cannot_fit(record, strategies)


def strategies_of(record: Record) -> dict[int, dict[str, Any]]:
    """How each rank trains; of several ways the one that most workers share."""
    found = {}
    for rank in record.ranks:
        told = record.facts.of(rank).told("strategy")
        if told:
            found[rank] = max(reversed(told), key=lambda one: number(one.get("workers")) or 0)
    return found


def _alone(record: Record, strategies: Mapping[int, Mapping[str, Any]]) -> Iterator[Finding]:
    """Ranks whose cluster names more workers than they train with."""
    seats = seats_of(record)
    short: dict[tuple[str, int, int], list[int]] = {}
    for rank, told in strategies.items():
        seat, workers = seats.get(rank), number(told.get("workers"))
        if seat is None or workers is None or not seat.trains or _SERVED in _name(told).lower():
            continue
        if workers < seat.workers:
            short.setdefault((_name(told), workers, seat.workers), []).append(rank)
    for (name, workers, named), ranks in short.items():
        yield Finding(
            "config.strategy",
            Severity.CRITICAL,
            Certainty.PROVEN,
            say(
                "config.strategy.alone", ranks=ranks_words(ranks), name=name, workers=workers,
                named=named,
            ),
            ranks=tuple(ranks),
            evidence={
                "strategy": name,
                "workers": workers,
                "workers_named": named,
                "replicas": strategies[ranks[0]].get("replicas"),
            },
            advice=(say("advice.strategy.workers"),),
        )  # fmt: skip


def _told_nothing(record: Record, strategies: Mapping[int, Mapping[str, Any]]) -> Iterator[Finding]:
    """Ranks that a launcher started together and that know of no cluster."""
    world = max(record.run.world_size, len(record.ranks))
    without = [
        rank
        for rank, told in strategies.items()
        if number(told.get("workers")) == 1
        and not record.facts.of(rank).told("tf_config")
        and not told.get("joined_by")
    ]
    if world < 2 or not without:
        return
    others = [rank for rank in strategies if rank not in without]
    yield Finding(
        "config.tf_config",
        Severity.WARNING,
        Certainty.PROVEN if others else Certainty.LIKELY,
        say(
            "config.tf_config.absent.some" if others else "config.tf_config.absent",
            ranks=ranks_words(without), world_size=world,
        ),
        ranks=tuple(without),
        evidence={
            "world_size": world,
            "workers": 1,
            "strategy": _name(strategies[without[0]]),
            "others_were_told": others,
        },
        advice=(say("advice.tf_config"), say("advice.strategy.sweep")),
    )  # fmt: skip


def _strangers(record: Record) -> Iterator[Finding]:
    """Ranks that train a model each, step after step, and never say a word to each other."""
    ranks = record.ranks
    if len(ranks) < 2 or record.communications or record.facts.groups:
        return
    models = [record.facts.of(rank).last("model") for rank in ranks]
    same = len({(model.get("class"), model.get("parameters")) for model in models}) == 1
    if not all(models) or not same or record.run.steps < record.options.strangers_steps:
        return
    yield Finding(
        "config.strategy",
        Severity.WARNING,
        Certainty.LIKELY,
        say("config.strategy.strangers", count=len(ranks), steps=record.run.steps),
        ranks=ranks,
        evidence={"communications": 0, "model": models[0].get("class"), "steps": record.run.steps},
        advice=(say("advice.strategy.join"), say("advice.strategy.sweep")),
    )


def _one_rank_many_times(record: Record) -> Iterator[Finding]:
    """Processes of one job that each believe to be its only one."""
    for rank, processes in record.coverage.duplicate_ranks.items():
        of = record.facts.of(rank)
        if record.run.world_size > 1 or of.told("tf_config"):
            continue
        yield Finding(
            "config.strategy",
            Severity.WARNING,
            Certainty.LIKELY,
            say("config.strategy.each_alone", count=len(processes)),
            ranks=(rank,),
            evidence={"processes": list(processes), "world_size": record.run.world_size},
            advice=(say("advice.strategy.join"), say("advice.duplicate")),
        )


def _idle_devices(record: Record, strategies: Mapping[int, Mapping[str, Any]]) -> Iterator[Finding]:
    """Accelerators that processes see and no replica is on."""
    hosts: dict[str, list[int]] = {}
    for rank in strategies:
        hosts.setdefault(record.facts.of(rank).host, []).append(rank)
    for host, ranks in hosts.items():
        visible = max(_visible(strategies[rank]) for rank in ranks)
        used = sum(_on_accelerators(strategies[rank]) for rank in ranks)
        if used >= visible:
            continue
        told = strategies[ranks[0]]
        yield Finding(
            "config.strategy",
            Severity.WARNING,
            Certainty.PROVEN,
            say(
                "config.strategy.devices" if used else "config.strategy.no_devices",
                host=host or "its host", used=used, visible=visible, name=_name(told),
                ranks=ranks_words(ranks),
            ),
            ranks=tuple(ranks),
            evidence={
                "visible_devices": told.get("visible_devices"),
                "devices": told.get("devices"),
                "replicas_here": used,
            },
            advice=(say("advice.strategy.devices"),),
        )  # fmt: skip


def _visible(told: Mapping[str, Any]) -> int:
    """How many accelerators a process sees."""
    devices = told.get("visible_devices")
    counts = devices.items() if isinstance(devices, dict) else ()
    return sum(number(count) or 0 for kind, count in counts if str(kind).upper() != "CPU")


def _on_accelerators(told: Mapping[str, Any]) -> int:
    """How many of them its replicas are on; where devices are not listed, as many as replicas."""
    devices = told.get("devices")
    if isinstance(devices, list) and devices:
        return len({str(name) for name in devices if "CPU" not in str(name).upper()})
    return number(told.get("local_replicas")) or 0


def _unused_parts(strategies: Mapping[int, Mapping[str, Any]]) -> Iterator[Finding]:
    """Devices into which a process divided its CPU, or its accelerators, and that have no replica.

    What one process has of its own no other one uses.
    """
    for rank, told in strategies.items():
        logical = told.get("logical_devices")
        visible = told.get("visible_devices")
        devices = told.get("devices")
        if not (isinstance(logical, dict) and isinstance(visible, dict)):
            continue
        if not isinstance(devices, list) or not devices:
            continue
        kind = "GPU" if any("GPU" in str(name).upper() for name in devices) else "CPU"
        count = number(logical.get(kind)) or 0
        used = len({str(name) for name in devices if kind in str(name).upper()})
        if count <= (number(visible.get(kind)) or 0) or used >= count:
            continue
        yield Finding(
            "config.strategy",
            Severity.WARNING,
            Certainty.PROVEN,
            say(
                "config.strategy.parts", name=_name(told), used=used, count=count, kind=kind,
                rank=rank,
            ),
            ranks=(rank,),
            evidence={"logical_devices": logical, "devices": devices},
            advice=(say("advice.strategy.devices"),),
        )  # fmt: skip


def _unequal(record: Record, strategies: Mapping[int, Mapping[str, Any]]) -> Iterator[Finding]:
    """Workers with fewer replicas than others of the same training."""
    counts = {
        rank: count
        for rank, told in strategies.items()
        if (count := number(told.get("local_replicas"))) and (number(told.get("workers")) or 0) > 1
    }
    most = max(counts.values(), default=0)
    fewer = [rank for rank, count in counts.items() if count < most]
    if fewer:
        yield Finding(
            "config.strategy",
            Severity.WARNING,
            Certainty.PROVEN,
            say("config.strategy.unequal", ranks=ranks_words(fewer), most=most),
            ranks=tuple(fewer),
            evidence={"local_replicas": {str(rank): count for rank, count in counts.items()}},
            advice=(say("advice.strategy.devices"),),
        )


def _cannot_fit(record: Record, strategies: Mapping[int, Mapping[str, Any]]) -> Iterator[Finding]:
    """A version of Keras whose ``fit`` cannot use replicas of several workers."""
    concerned, failed, errors = [], [], []
    version_of = {}
    for rank, told in strategies.items():
        fitted = text_of(record.facts.of(rank).last("model").get("keras"))  # told by fit alone
        version_of[rank] = fitted or text_of(told.get("keras"))
        version = _MAJOR.match(version_of[rank].lower())
        by_workers = any(name in _name(told).lower() for name in _MIRRORED_BY_WORKERS)
        if version is None or int(version[1]) < 3 or not by_workers:
            continue
        end = record.ends.get(rank)
        if end is not None and _cannot_convert(end):
            failed.append(rank)
            errors.append(end.error or "")
        elif fitted:
            concerned.append(rank)
    if not strategies:
        yield from _by_error_alone(record)
    if not failed and (not concerned or record.run.steps):
        return
    ranks = sorted({*failed, *concerned})
    told = strategies[ranks[0]]
    yield Finding(
        "config.keras",
        Severity.CRITICAL if failed else Severity.WARNING,
        Certainty.PROVEN if failed else Certainty.LIKELY,
        say("config.keras", keras=version_of[ranks[0]], name=_name(told)),
        ranks=tuple(ranks),
        evidence={
            "keras": version_of[ranks[0]],
            "tensorflow": told.get("tensorflow"),
            "error": errors[0][:300] if errors else None,
        },
        advice=(say("advice.keras"),),
    )


def _cannot_convert(end: End) -> bool:
    """Whether a rank ended because values of replicas came where a tensor is needed."""
    error = end.error or ""
    return end.is_bad and "PerReplica" in error and "unsupported type" in error


def _by_error_alone(record: Record) -> Iterator[Finding]:
    """Keras 3 fails before it calls any callback, so nothing may be told of the strategy."""
    ranks = tuple(rank for rank, end in record.ends.items() if _cannot_convert(end))
    if not ranks:
        return
    end = record.ends[ranks[0]]
    yield Finding(
        "config.keras",
        Severity.WARNING,
        Certainty.LIKELY,
        say("config.keras.error", ranks=ranks_words(ranks)),
        ranks=ranks,
        evidence={"error": (end.error or "")[:300], "frame": end.frame},
        advice=(say("advice.keras"), say("advice.reduction.local")),
    )


def _name(told: Mapping[str, Any]) -> str:
    return text_of(told.get("class")) or "its strategy"
