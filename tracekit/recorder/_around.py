"""A call as a nested span, on a thread whose state the caller holds: ``with``, for cold caches.

There each function that is entered costs more than what it does, so both halves are in one; and
stores word by word are cheaper than to pack, which is cheaper in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracekit.recorder._thread import surfaces
from tracekit.recorder.spans import ERROR, SpanType, clock, write

if TYPE_CHECKING:
    from tracekit.recorder.threads import Here

__all__ = ["Around", "around"]

Around = Callable[["Here", Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""Call a function with these arguments as a span; returns and raises what it does."""


def around(type_: SpanType) -> Around:
    """What calls a function as a span of this type."""
    what = type_.what

    def call(
        here: Here, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        state = here.found or here.find()
        recorder = state.recorder
        outer = state.top
        frame = outer.deeper or state.deepen(outer)
        parent = recorder.step_id
        if outer.id > parent:
            parent = outer.id
        step = recorder.step_word
        id_ = next(state.ids)
        start = clock()
        # From here on no call: a span that a signal handler records must not meet half a frame.
        words = state.open_words
        if frame.what is not what:
            frame.what = words[frame.row + 1] = what
        words[frame.row] = start
        words[frame.mark] = id_
        frame.id = id_
        state.top = frame
        flagged = what | ERROR
        try:
            result = function(*args, **kwargs)
            flagged = what
            return result
        finally:
            end = clock()
            # Elsewhere now (a fork's child, a recorder that is gone) the span stays open.
            if here.found is state or here.find() is state:
                try:
                    words, _, mark, commit = next(state.slots)
                    words[mark - 7] = start
                    words[mark - 6] = end - start
                    words[mark - 5] = flagged
                    words[mark - 4] = step
                    words[mark - 3] = id_
                    words[mark - 2] = parent
                    words[mark] = commit
                except StopIteration:
                    write(state, None, 0, start, end - start, flagged, step, id_, parent)
                if state.top is frame or surfaces(state.top, frame):
                    state.top = frame.outer or outer
                state.open_words[frame.mark] = 0

    return call
