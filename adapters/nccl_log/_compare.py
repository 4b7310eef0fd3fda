"""The calls of all ranks of a communicator, side by side: where they part, and who has fewer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracekit.adapters.nccl_log._state import Call, Calls

__all__ = ["Difference", "describe", "first_difference"]

_TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3", "float8_e5m2",
)  # fmt: skip
_SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
_REDUCTIONS = ("sum", "prod", "max", "min", "avg")
_ROOTED = (b"Broadcast", b"Reduce", b"Gather", b"Scatter")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first call in which ranks differ: between two numbers where it was not kept."""

    number: int
    not_after: int
    calls: Mapping[int, Call]
    """What the ranks called there; empty where it was not kept."""


def first_difference(calls: Mapping[int, Calls]) -> Difference | None:
    """Where the calls of ranks part, as far as all of them have come; None where they agree."""
    if len(calls) < 2:
        return None
    common = min(of.count for of in calls.values())
    kept = min([common, *(len(of.first) for of in calls.values())])
    for number in range(kept):
        there = {rank: of.first[number] for rank, of in calls.items()}
        if len({_agreed(call) for call in there.values()}) > 1:
            return Difference(number, number, there)
    stride = max(of.stride for of in calls.values())
    equal = kept
    for end in range(stride, common + 1, stride):
        if len({of.marks[end // of.stride - 1] for of in calls.values()}) > 1:
            return _between(calls, max(kept, equal), end)
        equal = end
    return _between(calls, max(kept, equal), common) if equal < common else None


def _between(calls: Mapping[int, Calls], begin: int, end: int) -> Difference | None:
    """Look among the calls that were kept; what is not kept stays a range."""
    whole = True
    for number in range(begin, end):
        there = {rank: call for rank, of in calls.items() if (call := of.at(number)) is not None}
        if len({_agreed(call) for call in there.values()}) > 1:
            return Difference(number if whole else begin, number, there)
        whole &= len(there) == len(calls)
    return Difference(begin, end - 1, {}) if not whole and _marked(calls, end) else None


def _marked(calls: Mapping[int, Calls], end: int) -> bool:
    """Whether hashes say that ranks differ before this call."""
    if any(end % of.stride for of in calls.values()):
        return False
    return len({of.marks[end // of.stride - 1] for of in calls.values()}) > 1


def _agreed(call: Call) -> tuple[bytes, ...]:
    """What all ranks must say alike: the root only where there is one."""
    return call if call[0] in _ROOTED else call[:4]


def describe(call: Call) -> dict[str, object]:
    """A call in our words."""
    kind = int(call[2]) if call[2].isdigit() else -1
    reduction = int(call[3]) if call[3].isdigit() else -1
    count = int(call[1]) if call[1].isdigit() else None
    known = 0 <= kind < len(_TYPES)
    return {
        "op": call[0].decode("ascii", "replace"),
        "count": count,
        "dtype": _TYPES[kind] if known else str(kind),
        "bytes": count * _SIZES[kind] if known and count is not None else None,
        "reduction": _REDUCTIONS[reduction] if 0 <= reduction < len(_REDUCTIONS) else "user",
        "root": int(call[4]) if call[4].lstrip(b"-").isdigit() else None,
    }
