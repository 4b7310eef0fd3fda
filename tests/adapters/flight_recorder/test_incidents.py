"""Two incidents of a job with tensor, pipeline and expert parallel groups, two faulty ranks each.

They have the shape of the public ones (version 2.9, every call "scheduled", numbers of groups that
differ from their names, messages counted with collectives), and numbers of their own.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.adapters.flight_recorder.samples import NOW, entry, hangs, verdict

WORLD = 16
HALF = WORLD // 2
LOCALS = {"default_pg": 0, "TENSOR": 1, "EXPERT": 2, "PIPELINE": 3}
"""The number that each rank gives its group of a kind."""


def groups_of(rank: int) -> dict[str, tuple[str, Sequence[int]]]:
    """Name and members of a rank's groups by their kind."""
    pair, half, stage = rank // 2 * 2, rank // HALF, rank % HALF
    return {
        "default_pg": ("0", range(WORLD)),
        "TENSOR": (str(20 + rank // 2), (pair, pair + 1)),
        "EXPERT": (str(60 + half), range(half * HALF, half * HALF + HALF)),
        "PIPELINE": (str(40 + stage), (stage, stage + HALF)),
    }


class Rank:
    """The dump of one rank: what it has not completed, and how far it is in each group."""

    def __init__(self, rank: int, status: Mapping[str, tuple[int, int]]) -> None:
        self.rank = rank
        self.groups = groups_of(rank)
        self.status = dict(status)
        self.entries: list[dict[str, Any]] = []

    def in_call(self, kind: str, seq: int, op: str, message: bool = False) -> Rank:
        """It has entered a call and not completed it."""
        self.entries.append(
            entry(
                seq, op, state="scheduled", group=(self.groups[kind][0], kind), message=message,
                pg_id=LOCALS[kind], record_id=5000 + len(self.entries), dtype="BFloat16",
            )
        )  # fmt: skip
        return self

    def write(self, folder: Path) -> None:
        config = {
            name: {"name": name, "desc": kind, "ranks": str(list(members))}
            for kind, (name, members) in self.groups.items()
        }
        status = {
            str(LOCALS[kind]): {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for kind, (enqueued, completed) in self.status.items()
        }
        value = {
            "version": "2.9", "nccl_version": "2.27.3", "pg_config": config, "pg_status": status,
            "entries": self.entries,
        }  # fmt: skip
        path = folder / f"_dump_{self.rank}"
        path.write_bytes(pickle.dumps(value, protocol=2))
        os.utime(path, ns=(0, NOW + 10**10))


def accused(folder: Path, job: Sequence[Rank]) -> list[int]:
    """Whom the dumps accuse; all of it likely, and nobody else's dump is missed."""
    for rank in job:
        rank.write(folder)
    analysis = verdict(folder)
    assert analysis.symptom == "hang"
    assert analysis.run.missing_ranks == ()
    assert {certainty for _, _, certainty in hangs(analysis)} == {"likely"}
    return sorted(rank for _, ranks, _ in hangs(analysis) for rank in ranks)


def first_stage(rank: int) -> Rank:
    """A rank that waits for what its partner in the other half of the pipeline sends."""
    done = {"default_pg": (163, 163), "TENSOR": (7000, 7000), "EXPERT": (500, 500)}
    return Rank(rank, {**done, "PIPELINE": (310 + rank, 309)}).in_call(
        "PIPELINE", 310 + rank, "recv 0<-1", message=True
    )


def test_ranks_whose_device_fails_are_accused_and_no_others(tmp_path: Path) -> None:
    """Rank 12 stops before a call and in the one before it, rank 14 only gets no further."""
    job = [first_stage(rank) for rank in range(HALF)]
    for rank in range(HALF, WORLD):
        enqueued = 500 if rank != 12 else 499
        completed = 498 if rank in (12, 14) else 499
        status = {
            "default_pg": (163, 163), "TENSOR": (7000, 7000), "EXPERT": (enqueued, completed),
            "PIPELINE": (300, 300),
        }  # fmt: skip
        one = Rank(rank, status)
        for seq in range(completed + 1, enqueued + 1):
            one.in_call("EXPERT", seq, "all_to_all")
        job.append(one)
    assert accused(tmp_path, job) == [12, 14]


def test_ranks_that_stand_still_on_the_host_are_accused_and_no_others(tmp_path: Path) -> None:
    """Ranks 9 and 14 recorded nothing that is open: only numbers tell where they are. Rank 15
    waits for 14 in a pair of its own, and so misses what 8 and 10 to 13 are in."""
    job = [first_stage(rank) for rank in range(HALF)]
    for rank in range(HALF, WORLD):
        done = {"default_pg": (163, 163), "PIPELINE": (300, 300)}
        if rank in (9, 14):
            job.append(Rank(rank, {**done, "TENSOR": (7000, 7000), "EXPERT": (499, 499)}))
        elif rank == 15:
            one = Rank(rank, {**done, "TENSOR": (7001, 7000), "EXPERT": (499, 499)})
            job.append(one.in_call("TENSOR", 7001, "_all_gather_base"))
        else:
            one = Rank(rank, {**done, "TENSOR": (7000, 7000), "EXPERT": (500, 499)})
            job.append(one.in_call("EXPERT", 500, "all_to_all"))
    assert accused(tmp_path, job) == [9, 14]
