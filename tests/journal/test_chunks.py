"""How large the chunks of a journal are, whatever its segments are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorder.tape import recording
from tracekit import recorder
from tracekit.journal.format import SEGMENT_BYTES, chunk_size
from tracekit.model.record import RECORD_BYTES


@given(st.integers(0, 1 << 40))
def test_a_chunk_is_a_whole_number_of_records_between_two_bounds(segment_bytes: int) -> None:
    size = chunk_size(segment_bytes)
    assert size % RECORD_BYTES == 0
    assert 16 << 10 <= size <= 64 << 10


@pytest.mark.parametrize("segment_bytes", [1, 40_000, 1 << 17, 1_500_001, SEGMENT_BYTES])
def test_chunks_of_any_segment_keep_every_span(tmp_path: Path, segment_bytes: int) -> None:
    with recording(tmp_path, segment_bytes=segment_bytes) as tape:
        for _ in range(5_000):
            with recorder.span("work"):
                pass
        ids = [row["span_id"] for row in tape.spans()]
        journal = tape.journal()
        assert (journal.chunk_bytes, len(set(ids))) == (chunk_size(segment_bytes), 5_000)
        assert journal.segment_bytes >= 2 * journal.chunk_bytes
