"""The facts of a run that no file of facts holds: who the ranks are and how they ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tracekit.dataset._ending import end_state
from tracekit.dataset._remainder import Opened, Rest
from tracekit.dataset._sidecars import (
    Sidecars,
    Stem,
    launcher_state,
    merged_state,
    pid_of,
    rank_of,
)
from tracekit.dataset.facts import FactRow
from tracekit.dataset.parts import Held

__all__ = ["Known", "run_facts"]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a run's processes; ``losers`` were a rank that another one was too."""

    opened: Opened
    rests: Mapping[Stem, Rest]
    held: Mapping[Stem, list[Held]]
    sidecars: Sidecars
    losers: set[Stem]

    def identities(self) -> dict[Stem, dict[str, Any]]:
        """Who wrote what, the newest word each. A process without records counts when its rank
        has no other one."""
        found: dict[Stem, dict[str, Any]] = {
            key: {"rank": listed[0].rank, "world_size": listed[0].world_size}
            for key, listed in self.held.items()
            if key[1]
        }
        ranks = {(attempt, held["rank"]) for (attempt, _), held in found.items()}
        journals = {(j.attempt, j.stem): j.identity for j, _ in self.opened.journals}
        ranks |= {(journal.attempt, journal.rank) for journal, _ in self.opened.journals}
        for key, identity in self.sidecars.identities.items():
            rank = identity.get("rank", rank_of(key[1]))
            if key in found or (key[0], rank) not in ranks:
                found[key] = {"rank": rank, **identity}
        found.update({key: dict(identity) for key, identity in journals.items()})
        return {key: found[key] for key in sorted(found) if key not in self.losers}


def run_facts(known: Known, run_id: str) -> list[FactRow]:
    """Rows named rank, end_state and stack, and what live journals say."""
    identities = known.identities()
    words = _words(known, identities)
    journals = {(j.attempt, j.stem): j for j, _ in known.opened.journals}
    rows: list[FactRow] = []
    for key, identity in identities.items():
        attempt, stem = key
        rank, host = identity.get("rank", rank_of(stem)), identity.get("host")

        def row(name: str, value: Any, time_ns: int | None = None) -> FactRow:
            return FactRow(run_id, attempt, rank, name, value, host=host, time_ns=time_ns)  # noqa: B023

        rows.append(row("rank", {**identity, "stem": stem}))
        rows += known.rests[key].facts if key in known.rests else []
        seen = known.sidecars.ends.get(key)
        if seen is None and key in journals:
            seen = end_state(journals[key])
        if seen is not None and seen.get("state") in ("vanished", "signal"):
            seen = {**seen, **known.sidecars.deaths.get(key, {})}
        word = words.pop(key, None)
        if seen or word:
            state = merged_state(seen or {}, word)
            rows.append(row("end_state", state, state.get("time_ns")))
        rows += [row("stack", s, s.get("time_ns")) for s in known.sidecars.stacks.get(key, [])]
    for (attempt, _), word in words.items():
        rank = word.get("rank")
        rows.append(FactRow(run_id, attempt, rank, "end_state", launcher_state(word)))
    return rows


def _words(
    known: Known, identities: Mapping[Stem, Mapping[str, Any]]
) -> dict[Stem, dict[str, Any]]:
    """The launcher's words by the process each is about; under a made-up stem where none is."""
    found: dict[Stem, dict[str, Any]] = {}
    for number, (attempt, word) in enumerate(known.sidecars.launcher):
        stems = list(_candidates(attempt, word, identities))
        found[stems[0] if stems else (attempt, f"launcher-{number}")] = word
    return found


def _candidates(
    attempt: int, word: Mapping[str, Any], identities: Mapping[Stem, Mapping[str, Any]]
) -> Iterator[Stem]:
    """The processes a word may be about, by pid first, then by rank."""
    rank, pid = word.get("rank"), word.get("pid")
    of_rank = [
        key
        for key, identity in identities.items()
        if key[0] == attempt and rank in (None, identity.get("rank", rank_of(key[1])))
    ]
    yield from (key for key in of_rank if pid is not None and pid_of(key[1]) == pid)
    if rank is not None:
        yield from of_rank
