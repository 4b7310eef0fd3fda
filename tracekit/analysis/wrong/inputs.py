"""What ranks are fed: whether they read the same, as much as each other, and in a new order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tracekit.analysis.queries import query
from tracekit.analysis.record import Record, number, text_of
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say

__all__ = ["input_findings"]

_MOST_STEPS = 1000
"""Steps that are looked at for equal losses."""
_EVALUATION = ("val", "eval", "test", "dev")


def input_findings(record: Record) -> Iterator[Finding]:
    """What is wrong with the ranks' shares of the data; how long they wait is judged elsewhere."""
    yield from _uneven(record)
    yield from _few_files(record)
    yield from _same_samples(record)
    yield from _small_buffer(record)


# As much as each other


def _uneven(record: Record) -> Iterator[Finding]:
    """Epochs in which ranks got unequal numbers of batches: counted, else by their samplers."""
    counted = _counted(record)
    for (epoch, _), counts in sorted(counted.items()):
        if len(set(counts.values())) > 1:
            yield _uneven_finding(record, counts, "counted", Certainty.PROVEN, epoch)
            return
    planned = _planned(record)
    if len(set(planned.values())) > 1 and not any(len(c) > 1 for c in counted.values()):
        yield _uneven_finding(record, planned, "planned", Certainty.LIKELY, None)


def _uneven_finding(
    record: Record, counts: Mapping[int, int], how: str, certainty: Certainty, epoch: int | None
) -> Finding:
    least, most = min(counts.values()), max(counts.values())
    short = tuple(sorted(rank for rank, count in counts.items() if count < most))
    evidence: dict[str, Any] = {"batches": {str(r): n for r, n in sorted(counts.items())[:64]}}
    if epoch is not None:
        evidence["epoch"] = epoch
    return Finding(
        "data.uneven",
        Severity.WARNING,
        certainty,
        say(
            f"data.uneven.{how}", ranks=ranks_words(short), least=least, most=most, epoch=epoch,
        ),
        ranks=short,
        evidence=evidence,
        advice=(say("advice.uneven"),),
    )  # fmt: skip


def _counted(record: Record) -> dict[tuple[int, int], dict[int, int]]:
    """Batches of each rank in each epoch that it told of; of several data sets in their order."""
    found: dict[tuple[int, int], dict[int, int]] = {}
    for rank in record.ranks:
        told_of: Counter[int] = Counter()
        for told in record.facts.of(rank).told("tf_epoch"):
            epoch, elements = number(told.get("epoch")), number(told.get("elements"))
            if epoch is not None and elements is not None:
                found.setdefault((epoch, told_of[epoch]), {})[rank] = elements
                told_of[epoch] += 1
    if found:
        return found
    rows = record.engine.sql(query("epochs", attempt=record.attempt)).to_pylist()
    before: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: (row["rank"], row["step"])):
        # The step in which a rank began an epoch ended the one before it.
        rank, step = row["rank"], row["step"] - record.shifts.get(row["rank"], 0)
        if rank in before:
            found.setdefault((int(row["epoch"]) - 1, 0), {})[rank] = step - before[rank]
        before[rank] = step
    return found


def _planned(record: Record) -> dict[int, int]:
    """Batches of an epoch by each rank's sampler and loader."""
    found = {}
    for rank in record.ranks:
        of = record.facts.of(rank)
        samples = number(of.last("sampler").get("samples"))
        loader = of.last("loader")
        size = number(loader.get("batch_size"))
        if samples is None or not size:
            return {}
        found[rank] = samples // size if loader.get("drop_last") else -(-samples // size)
    return found


def _few_files(record: Record) -> Iterator[Finding]:
    """A data set that is dealt out by files, to more workers than it has."""
    for rank in record.ranks:
        of = record.facts.of(rank)
        workers = number(of.last("strategy").get("workers")) or record.run.world_size
        for told in of.told("tf_dataset"):
            files = number(told.get("files"))
            if text_of(told.get("auto_shard")).upper() != "FILE" or files is None:
                continue
            if files < workers:
                yield Finding(
                    "data.uneven",
                    Severity.WARNING,
                    Certainty.PROVEN,
                    say(
                        "data.uneven.files", files=files, workers=workers,
                        name=text_of(told.get("name")) or "the data set",
                    ),
                    ranks=record.ranks,
                    evidence={"files": files, "workers": workers, "auto_shard": "FILE"},
                    advice=(say("advice.shard.files"),),
                )  # fmt: skip
                return


# The same


def _same_samples(record: Record) -> Iterator[Finding]:
    """Ranks whose losses are the same to the bit, step after step: they read the same samples.

    Values that a strategy has put together before they were recorded are the same for that reason.
    """
    if any(record.facts.of(rank).told("strategy") for rank in record.ranks):
        return
    for ranks in record.peers.sets if record.peers.replicas else ():
        if len(ranks) < 2:
            continue
        record.engine.register("compared", pa.table({"rank": pa.array(ranks, pa.int32())}))
        first = record.run.first_step or 0
        steps_of = {"first": first, "last": first + _MOST_STEPS - 1}
        text = query("equal_losses", attempt=record.attempt, **steps_of)
        row = record.engine.sql(text).to_pylist()[0]
        steps, equal, values = (int(row[name] or 0) for name in ("steps", "equal", "different"))
        # Models that do not learn may have one loss all along.
        if steps < record.options.equal_losses_steps or equal < steps or 2 * values < steps:
            continue
        told = _reading(record, ranks)
        yield Finding(
            "data.same_shard",
            Severity.WARNING,
            Certainty.PROVEN if told["same_random_state"] else Certainty.LIKELY,
            say("data.same_shard", ranks=ranks_words(ranks), steps=steps),
            ranks=ranks,
            evidence={"steps": steps, "equal_losses": equal, **told},
            advice=(say("advice.same_shard"),),
        )


def _reading(record: Record, ranks: tuple[int, ...]) -> dict[str, Any]:
    """What the samplers say about it."""
    samplers = [record.facts.of(rank).last("sampler") for rank in ranks]
    states = {record.facts.of(rank).last("seeds").get("torch_state") for rank in ranks}
    return {
        "same_random_state": len(states) == 1 and None not in states,
        "samplers": sorted({text_of(one.get("class")) for one in samplers} - {""}),
        "sampler_ranks": [one.get("rank") for one in samplers][:16],
    }


# In a new order


def _small_buffer(record: Record) -> Iterator[Finding]:
    """A buffer that cannot shuffle the data fully: no matter where its order is random already."""
    seen = set()
    for rank in record.ranks:
        for told in record.facts.of(rank).told("tf_dataset"):
            name = text_of(told.get("name")) or "the data set"
            buffer, size = number(told.get("shuffle_buffer")), _elements(told)
            if buffer is None or size is None or not 0 < buffer < size or name in seen:
                continue
            if name.lower().startswith(_EVALUATION):
                continue
            seen.add(name)
            yield Finding(
                "data.shuffle",
                Severity.INFO,
                Certainty.CANNOT_TELL,
                say("data.shuffle", name=name, buffer=buffer, size=size),
                ranks=record.ranks,
                evidence={"shuffle_buffer": buffer, "elements": size},
                advice=(say("advice.shuffle", size=size),),
            )


def _elements(told: Mapping[str, Any]) -> int | None:
    """How many elements a data set has at least where it is shuffled, batched later or not."""
    size, batch = number(told.get("cardinality")), number(told.get("batch"))
    made = told.get("made_by")
    kinds = [str(kind) for kind in made] if isinstance(made, list) else []  # the last one first
    shuffled = next((i for i, kind in enumerate(kinds) if "Shuffle" in kind), -1)
    batched = next((i for i, kind in enumerate(kinds) if "Batch" in kind), len(kinds))
    if size is None or not batch or batched > shuffled:
        return size
    return (size - 1) * batch + 1
