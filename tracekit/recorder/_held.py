"""A nested span of a thread whose state the caller holds: what ``with`` does, for cold caches.

Stores word by word are cheaper there than to pack, which is cheaper in a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tracekit.recorder._thread import innermost
from tracekit.recorder.spans import ERROR, SpanType, clock, write

if TYPE_CHECKING:
    from tracekit.recorder._thread import ThreadState

__all__ = ["held"]


def held(
    type_: SpanType,
) -> tuple[Callable[[ThreadState], None], Callable[[ThreadState, bool], None]]:
    """The two halves of a span of this type: ``enter(state)`` and ``exit(state, error)``."""
    what = type_.what

    def enter(state: ThreadState) -> None:
        recorder = state.recorder
        outer = state.top
        frame = outer.deeper or state.deepen(outer)
        parent = recorder.step_id
        if outer.id > parent:
            parent = outer.id
        id_ = next(state.ids)
        start = clock()
        # From here on no call: a span that a signal handler records must not meet half a frame.
        words = state.open_words
        if frame.what is not what:
            frame.what = words[frame.row + 1] = what
        words[frame.row] = start
        words[frame.mark] = id_
        frame.start = start
        frame.step = recorder.step_word
        frame.id = id_
        frame.parent = parent
        state.top = frame

    def exit_(state: ThreadState, error: bool) -> None:
        end = clock()
        frame = state.top
        start = flagged = 0
        try:
            if frame.what is not what:
                frame = innermost(frame, what)
            start, flagged = frame.start, what | ERROR if error else what
            words, _, mark, commit = next(state.slots)
            words[mark - 7] = start
            words[mark - 6] = end - start
            words[mark - 5] = flagged
            words[mark - 4] = frame.step
            words[mark - 3] = frame.id
            words[mark - 2] = frame.parent
            words[mark] = commit
        except StopIteration:
            write(state, None, 0, start, end - start, flagged, frame.step, frame.id, frame.parent)
        except LookupError:
            return
        if frame.outer is not None:
            state.top = frame.outer
        state.open_words[frame.mark] = 0

    return enter, exit_
