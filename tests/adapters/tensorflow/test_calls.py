"""Calls that all workers make together, as the host sees them."""

from __future__ import annotations

from contextlib import suppress

import tensorflow as tf

from tests.adapters.torch.tape import recording
from tracekit import recorder
from tracekit.adapters.tensorflow._calls import HostCalls


def make(calls: HostCalls, error: Exception | None = None) -> None:
    with (
        suppress(tf.errors.OpError, ValueError),
        calls.call("host", "all_reduce", "sum", keep=True),
    ):
        if error is not None:
            raise error


def test_a_call_to_which_others_did_not_come_stays_open_until_the_next_one() -> None:
    with recording(0, 2) as tape:
        current = recorder.current()
        assert current is not None
        calls = HostCalls(current)
        make(calls, tf.errors.UnavailableError(None, None, "a task stopped sending heartbeats"))
        assert tape.open_spans() == ["sum"]
        make(calls)
        assert tape.open_spans() == []
        assert [span.seq for span in tape.spans()] == [2]


def test_a_call_that_failed_by_itself_is_over() -> None:
    with recording(0, 2) as tape:
        current = recorder.current()
        assert current is not None
        for error in (tf.errors.OutOfRangeError(None, None, "end of sequence"), ValueError()):
            make(HostCalls(current), error)
            assert tape.open_spans() == []
