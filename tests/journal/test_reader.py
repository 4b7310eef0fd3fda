"""What a journal holds is read from its bytes, whatever state its writer left it in."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.journal.handmade import (
    CHUNK,
    CHUNK_HEAD,
    COLLECTIVE,
    COLLECTIVE_SPAN,
    FACT,
    GROUP,
    HEADER,
    IDENTITY,
    JSON,
    NAME,
    SLOTS,
    START,
    STEM,
    UNIX,
    Journal,
    piece,
    span,
    values,
    what,
)
from tracekit.errors import FormatError, InputError, VersionError
from tracekit.journal.format import Live
from tracekit.journal.reader import Anchor, JournalReader, find_journals, open_journal
from tracekit.journal.slots import Run

FIRST = HEADER // 64
"""The slot of the first chunk's header."""


def ids(journal: JournalReader, covered: list[Run] | None = None) -> list[int]:
    """The ids of the records that count."""
    found = []
    for records in journal.records(covered or ()):
        for row, type_ in zip(records.rows.tolist(), records.types.tolist(), strict=True):
            if type_ not in (CHUNK_HEAD, 3, 4, 5):
                found.append(row[4] >> 24 if type_ == COLLECTIVE_SPAN else row[4])
    return found


def owned(journal: JournalReader) -> dict[int, list[int]]:
    """How many continuations each record has, by id, as their details."""
    found: dict[int, list[int]] = {}
    for records in journal.records():
        for place, owner in enumerate(records.owners.tolist()):
            if owner >= 0 and owner != place:
                detail = int(records.rows[place, 0]) & 0xFFFFFF
                found.setdefault(int(records.rows[owner, 4]), []).append(detail)
    return found


def test_records_come_in_the_order_of_their_slots(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(2), span(1)])
    made.chunk([span(3)], number=1)
    assert ids(open_journal(made.save(tmp_path))) == [2, 1, 3]


def test_a_record_without_its_commit_word_is_none(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1), None, span(3)])
    struct.pack_into("<2q", made.segment(), HEADER + 2 * 64, START, 99)
    journal = open_journal(made.save(tmp_path))
    assert ids(journal) == [1, 3]
    assert [records.torn for records in journal.records()] == [1]


def test_a_commit_word_of_another_slot_or_segment_is_none(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1), span(2), span(3)])
    segment = made.segment()
    first = HEADER + 64
    segment[first + 64 : first + 128] = segment[first : first + 64]  # a copy of slot 1 in slot 2
    struct.pack_into("<q", segment, first + 128 + 56, 9 << 32 | (first + 128))
    journal = open_journal(made.save(tmp_path))
    assert ids(journal) == [1]
    assert [records.torn for records in journal.records()] == [2]


def test_a_chunk_without_header_holds_nothing(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1)])
    made.segment()[HEADER : HEADER + 64] = bytes(64)
    assert ids(open_journal(made.save(tmp_path))) == []


def test_of_a_live_writer_a_chunk_counts_up_to_its_first_gap(tmp_path: Path) -> None:
    made = Journal().alive()
    made.chunk([span(1), None, span(3)])
    made.chunk([span(4)])
    journal = open_journal(made.save(tmp_path))
    assert journal.alive()
    assert ids(journal) == [1, 4]


def test_once_the_writer_stopped_gaps_do_not_matter(tmp_path: Path) -> None:
    made = Journal().alive()
    made.chunk([span(1), None, span(3)])
    made.live[Live.STOPPED] = START + 5
    journal = open_journal(made.save(tmp_path))
    assert not journal.writing()
    assert ids(journal) == [1, 3]


def test_in_a_retired_segment_gaps_do_not_matter(tmp_path: Path) -> None:
    made = Journal().alive()
    made.chunk([span(1), None, span(3)], number=0)
    made.chunk([span(4), None, span(6)], number=1)
    made.live[Live.RETIRED] = 1
    assert ids(open_journal(made.save(tmp_path))) == [1, 3, 4]


def test_continuations_belong_to_their_owner_whatever_lies_between(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([values(7, 1), values(8, 2), span(9), span(8), piece(JSON, 7, b"{}"), span(7)])
    assert owned(open_journal(made.save(tmp_path))) == {7: [1, 2], 8: [2]}


def test_a_collective_owns_continuations_too(tmp_path: Path) -> None:
    made = Journal()
    words = (START, 1, what(1), 0, 7 << 24 | 2, 1 << 48 | 5, 64)
    made.chunk([values(7, 1), (COLLECTIVE_SPAN, words)])
    assert [records.owners.tolist() for records in open_journal(made.save(tmp_path)).records()] == [
        [0, 2, 2]
    ]


def test_continuations_without_owner_are_dropped(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([values(7, 1), span(8)])
    made.chunk([span(7)])  # written anew in the next chunk, its attributes did not fit before
    assert owned(open_journal(made.save(tmp_path))) == {}


def test_of_a_live_writer_continuations_wait_for_their_owner(tmp_path: Path) -> None:
    made = Journal().alive()
    made.chunk([span(1), values(9, 1), values(2, 1), span(3), values(4, 1), span(2)])
    made.chunk([span(5), values(6, 1)])
    journal = open_journal(made.save(tmp_path))
    assert ids(journal) == [1, 5]
    taken = [run for records in journal.records() for run in records.taken]
    assert taken == [(0, FIRST + 2), (FIRST + SLOTS, FIRST + SLOTS + 2)]


def test_of_a_live_writer_orphans_in_a_full_chunk_do_not_wait(tmp_path: Path) -> None:
    made = Journal().alive()
    made.chunk([span(n) for n in range(1, SLOTS - 1)] + [values(99, 1)])
    assert ids(open_journal(made.save(tmp_path))) == list(range(1, SLOTS - 1))


def test_covered_slots_are_not_read_again(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1), span(2), span(3)])
    made.chunk([span(4)], number=1)
    journal = open_journal(made.save(tmp_path))
    base = journal.slots
    assert ids(journal, [(0, FIRST + 2)]) == [2, 3, 4]
    assert ids(journal, [(FIRST + 2, FIRST + 3), (base + FIRST, base + FIRST + 9)]) == [1, 3]
    assert not journal.is_covered(journal.segments[0], [(0, FIRST + 3)])
    assert journal.is_covered(journal.segments[0], [(0, FIRST + 4)])


def test_a_segment_is_passed_over_only_when_all_its_slots_are_covered(tmp_path: Path) -> None:
    made = Journal(chunks=3)
    for chunk in range(2):
        made.chunk([span(n) for n in range(15 * chunk + 1, 15 * chunk + 16)])
    made.chunk([span(31)])
    journal = open_journal(made.save(tmp_path))
    assert ids(journal, [(0, FIRST + 2 * SLOTS)]) == [31]
    assert ids(journal, [(0, FIRST + 3 * SLOTS)]) == []


def test_lanes_come_from_the_chunk_also_when_its_header_is_covered(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1), span(2)], lane=5)
    journal = open_journal(made.save(tmp_path))
    (records,) = journal.records([(0, FIRST + 2)])
    assert records.lanes.tolist() == [5]


def test_a_spare_segment_is_not_read_before_it_is_ready(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1)])
    head = made.save(tmp_path)
    (tmp_path / f"{STEM}.000001.tkj").write_bytes(bytes(made.segment_bytes))
    (tmp_path / f"{STEM}.000002.tkj").write_bytes(b"")
    journal = open_journal(head)
    assert ids(journal) == [1]
    assert journal.skipped == []


def test_segments_stay_readable_when_they_are_unlinked(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1)])
    journal = open_journal(made.save(tmp_path))
    (tmp_path / f"{STEM}.000000.tkj").unlink()
    assert ids(journal) == [1]


def test_new_segments_and_names_are_taken_in_by_refresh(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1)])
    head = made.save(tmp_path)
    journal = open_journal(head)
    made.define(NAME, 2, "more")
    made.chunk([span(2)], number=1)
    made.save(tmp_path / "new")
    with head.open("r+b") as file:  # in place, as a writer does
        file.write((tmp_path / "new" / head.name).read_bytes())
    (tmp_path / "new" / f"{STEM}.000001.tkj").rename(tmp_path / f"{STEM}.000001.tkj")
    journal.refresh()
    assert ids(journal) == [1, 2]
    assert journal.definitions.names == {1: "work", 2: "more"}


@pytest.mark.parametrize("cut", [HEADER + 64 * 3, HEADER + 64 * 3 + 5])
def test_of_a_cut_segment_the_rest_is_read_and_the_cut_is_named(tmp_path: Path, cut: int) -> None:
    made = Journal()
    made.chunk([span(1), span(2), span(3)])
    head = made.save(tmp_path)
    path = tmp_path / f"{STEM}.000000.tkj"
    path.write_bytes(path.read_bytes()[:cut])
    journal = open_journal(head)
    assert ids(journal) == [1, 2]
    assert journal.skipped == [
        (path, f"the file is cut: {cut} of {made.segment_bytes} bytes"),
    ]


@pytest.mark.parametrize(
    ("offset", "data", "reason"),
    [
        (0, b"GARBAGE!", "not a segment of a journal"),
        (
            8,
            struct.pack("<I", 9),
            "written in version 9 of the format; this tracekit reads up to 1",
        ),
        (12, struct.pack("<I", 5), "the segment belongs to another journal"),
    ],
)
def test_a_segment_that_is_none_is_named_and_the_others_are_read(
    tmp_path: Path, offset: int, data: bytes, reason: str
) -> None:
    made = Journal()
    made.chunk([span(1)])
    made.chunk([span(2)], number=1)
    made.segment(0)[offset : offset + len(data)] = data
    journal = open_journal(made.save(tmp_path))
    assert ids(journal) == [2]
    assert journal.skipped == [(tmp_path / f"{STEM}.000000.tkj", reason)]


@pytest.mark.parametrize("size", [0, 7, 300, 4096, 80000])
def test_a_cut_head_is_refused_by_name(tmp_path: Path, size: int) -> None:
    head = Journal().save(tmp_path)
    head.write_bytes(head.read_bytes()[:size])
    with pytest.raises(FormatError, match=r"head\.tkj: the (head is cut|file is empty)"):
        open_journal(head)


def test_garbage_is_no_head(tmp_path: Path) -> None:
    head = Journal().save(tmp_path)
    head.write_bytes(b"\xff" * 100_000)
    with pytest.raises(FormatError, match="not the head of a journal"):
        open_journal(head)


def test_a_head_whose_tables_lie_outside_is_refused(tmp_path: Path) -> None:
    made = Journal()
    made.places["group"] = 1 << 40, 16
    with pytest.raises(FormatError, match="lies outside"):
        open_journal(made.save(tmp_path))


def test_a_head_of_the_other_byte_order_is_refused(tmp_path: Path) -> None:
    made = Journal()
    head = made.save(tmp_path)
    raw = made.head()
    struct.pack_into(">q", raw, 256 + 8 * Live.DEFINED, len(made.definitions))
    head.write_bytes(raw)
    with pytest.raises(FormatError, match="the other byte order"):
        open_journal(head)


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    made = Journal()
    made.version = 2
    with pytest.raises(VersionError, match=r"head\.tkj: written in version 2 .* up to 1"):
        open_journal(made.save(tmp_path))


def test_a_head_that_is_gone_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_journal(tmp_path / f"{STEM}.head.tkj")


def test_a_folder_in_place_of_a_head_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{STEM}.head.tkj").mkdir()
    with pytest.raises(InputError):
        open_journal(tmp_path / f"{STEM}.head.tkj")


def test_journals_are_found_by_their_heads(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1)])
    heads = [made.save(tmp_path, "rank-00001.aa-2"), made.save(tmp_path, "rank-00000.aa-1")]
    assert find_journals(tmp_path) == heads[::-1]
    assert find_journals(tmp_path / "none") == []


def test_the_last_identity_counts(tmp_path: Path) -> None:
    made = Journal({"rank": 0, "assumed": True})
    made.define(IDENTITY, 0, {"rank": 5, "world_size": 8, "attempt": 2})
    journal = open_journal(made.save(tmp_path))
    assert (journal.rank, journal.attempt, journal.identity["world_size"]) == (5, 2, 8)


def test_without_identity_the_name_tells_the_rank(tmp_path: Path) -> None:
    made = Journal()
    made.definitions = b""
    journal = open_journal(made.save(tmp_path, "rank-00042.00c0ffee-77"))
    assert (journal.rank, journal.attempt, journal.process) == (42, 0, "00c0ffee-77")


def test_a_damaged_definition_costs_only_itself(tmp_path: Path) -> None:
    made = Journal()
    made.definitions += struct.pack("<HxxII4s", NAME, 9, 4, b"\xff{[,")
    made.define(COLLECTIVE, 3, ["all_reduce"])  # fields are missing
    made.define(NAME, 2, "after")
    journal = open_journal(made.save(tmp_path))
    assert journal.definitions.names == {1: "work", 2: "after"}
    assert journal.definitions.damaged == 2


def test_definitions_count_up_to_the_word_that_says_so(tmp_path: Path) -> None:
    made = Journal()
    head = made.save(tmp_path)
    made.define(NAME, 2, "too early")
    raw = made.head()
    struct.pack_into("<q", raw, 256 + 8 * Live.DEFINED, len(made.definitions) - 8)
    head.write_bytes(raw)
    assert open_journal(head).definitions.names == {1: "work"}


def test_facts_keep_their_json(tmp_path: Path) -> None:
    made = Journal()
    fact = {"name": "versions", "value": {"torch": "2.13", "ü": [1, None]}, "time_ns": START}
    made.define(FACT, 0, {**fact, "source": "train.py:3"})
    made.define(FACT, 0, {"name": "nan", "value": [float("nan")], "time_ns": 1, "source": None})
    first, second = open_journal(made.save(tmp_path)).definitions.facts
    assert (first.name, first.value) == ("versions", '{"torch": "2.13", "ü": [1, null]}')
    assert (first.time_ns, first.source) == (START, "train.py:3")
    assert second.value == '["nan"]'


def test_times_become_unix_times_by_the_first_anchor(tmp_path: Path) -> None:
    made = Journal()
    made.anchors = [(START, UNIX), (START + 9, UNIX + 19)]
    made.live[Live.ANCHORS] = 2
    journal = open_journal(made.save(tmp_path))
    assert journal.offset_ns == UNIX - START
    assert journal.anchors() == [Anchor(START, UNIX), Anchor(START + 9, UNIX + 19)]


def test_the_offset_of_the_session_wins_over_the_anchor(tmp_path: Path) -> None:
    journal = open_journal(Journal({"clock_offset_ns": 17}).save(tmp_path))
    assert journal.offset_ns == 17


def test_in_a_full_ring_of_anchors_the_one_being_written_is_left_out(tmp_path: Path) -> None:
    made = Journal()
    made.anchors = [(START + n, UNIX + n) for n in range(8)]
    made.live[Live.ANCHORS] = 8 + 3
    made.anchors[4] = START + 999, UNIX  # row 1 + (11 - 1) % 7: half written
    found = open_journal(made.save(tmp_path)).anchors()
    assert [anchor.monotonic_ns - START for anchor in found] == [0, 1, 2, 3, 5, 6, 7]


def test_groups_tell_their_last_sequence_numbers(tmp_path: Path) -> None:
    made = Journal()
    made.define(GROUP, 1, "world")
    made.define(GROUP, 2, "unused")
    made.groups = {1: (12, 11), 3: (4, 4)}
    assert open_journal(made.save(tmp_path)).groups() == {"world": (12, 11)}


def test_rows_of_the_open_span_table_in_use_are_those_with_an_id(tmp_path: Path) -> None:
    made = Journal()
    made.open_rows = {0: (START, what(1), 0, 0, 0, 0, 1, 7), 1: (START, 5, 0, 0, 0, 0, 1, 0)}
    rows = open_journal(made.save(tmp_path)).open_rows().tolist()
    assert rows == [[START, what(1), 0, 0, 0, 0, 1, 7, 0]]


def test_the_last_end_is_that_of_the_newest_host_span(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1, START, 10), span(2, START + 5, 20), span(3, START, 10**12, flags=1 << 22)])
    assert open_journal(made.save(tmp_path)).last_end() == START + 25


def test_only_one_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    head = Journal().save(tmp_path)
    first, second = open_journal(head), open_journal(head)
    with first.lock() as mine, second.lock() as theirs:
        assert (mine, theirs) == (True, False)
    with second.lock() as theirs:
        assert theirs


def test_chunks_of_nonsense_size_are_refused(tmp_path: Path) -> None:
    made = Journal()
    raw = made.head()
    struct.pack_into("<Q", raw, 24, CHUNK + 1)
    head = made.save(tmp_path)
    head.write_bytes(raw)
    with pytest.raises(FormatError, match="chunks of 1025 bytes"):
        open_journal(head)
