"""On which track each span of a rank stands, so that spans on a track nest and never overlap."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["sub_tracks"]

Row = tuple[int, int, int, int | None, int, bool]
"""Start, end, id, parent's id, lane, whether spans of the lane nest without being related."""


def sub_tracks(rows: Iterable[Row]) -> list[int]:
    """The sub-track of its lane for each span; rows come by start, the longest first.

    On a thread whatever lies inside of another span is part of it. Elsewhere spans run beside
    each other, and one stands in another only if it is its child.
    """
    lanes: dict[int, list[list[tuple[int, int]]]] = {}
    places = []
    for start, end, id_, parent, lane, nests in rows:
        tracks = lanes.setdefault(lane, [])
        chosen = -1
        for number, inside in enumerate(tracks):
            while inside and inside[-1][0] <= start:
                inside.pop()
            if inside:
                around, outer = inside[-1]
                if around < end or not (nests or outer == parent):
                    continue
                if parent is not None and any(one == parent for _, one in inside):
                    chosen = number
                    break
            if chosen < 0:
                chosen = number
        if chosen < 0:
            chosen = len(tracks)
            tracks.append([])
        tracks[chosen].append((end, id_))
        places.append(chosen)
    return places
