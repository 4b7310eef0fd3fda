"""What a rank waited for in each collective, and what the rest of the time went to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tracekit.exporters._arrows import Calls, beside_median
from tracekit.model import DIRECTION_OF_OP, Direction

__all__ = ["Wait", "waits"]


class Wait(NamedTuple):
    """One rank in one collective; rows of the spans, nanoseconds."""

    row: int
    source: int
    """Who was waited for; the row itself where it waited for nobody."""
    wait_ns: int
    queue_ns: int
    transfer_ns: int
    lateness_ns: int | None
    """Own arrival minus the median of the others', where all wait for all."""


def waits(calls: Calls) -> Iterator[Wait]:
    """The parts of every collective whose members were all recorded on one clock.

    wait: until the last one came. queue: from then until the end of the call before on the same
    communicator. transfer: the rest.
    """
    ended: dict[tuple[int, str], int] = {}
    for _, rows in sorted(calls.calls.items(), key=lambda call: (call[0][0], call[0][1])):
        waiting = {target: source for source, target in calls.pairs(rows)}
        late = _lateness(calls, rows) if waiting else {}
        for row in rows:
            lane = calls.ranks[row], calls.groups[row]
            end = int(calls.ends[row])
            if waiting:
                source = waiting.get(row, row)
                own = calls.starts[row]
                came = min(max(own, calls.starts[source]), end)
                begins = min(max(came, ended.get(lane, came)), end)
                yield Wait(row, source, came - own, begins - came, end - begins, late.get(row))
            ended[lane] = max(end, ended.get(lane, end))


def _lateness(calls: Calls, rows: list[int]) -> dict[int, int]:
    if DIRECTION_OF_OP.get(calls.ops[rows[0]]) is not Direction.ALL:
        return {}
    first = calls.starts[rows[0]]
    arrivals = np.array([calls.starts[row] - first for row in rows])
    return dict(zip(rows, beside_median(arrivals).astype(np.int64).tolist(), strict=True))
