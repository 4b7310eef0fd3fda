"""What ``open_run`` does: finding the files, choosing among them, adding up what is missing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.dataset._duplicates import duplicates
from tracekit.dataset._listing import Listing, list_files
from tracekit.dataset._remainder import Opened, Rest, Scratch, open_journals, rest_of
from tracekit.dataset._run_facts import Known, run_facts
from tracekit.dataset._sidecars import Sidecars, Stem, attempt_folders, rank_of, read_sidecars
from tracekit.dataset.conversion import run_id_of, run_json
from tracekit.dataset.coverage import Attempt, Coverage, Duplicate, Elsewhere, LiveExport
from tracekit.dataset.facts import table_of
from tracekit.dataset.parts import Footer, Held
from tracekit.dataset.schema import TABLES, cast
from tracekit.errors import InputError
from tracekit.journal.reader import HEAD_SUFFIX, find_journals
from tracekit.journal.slots import clip

__all__ = ["Opening"]


class Opening:
    """The state of one call of ``open_run``."""

    def __init__(self, path: Path, scratch: Scratch) -> None:
        self.path = path
        self.scratch = scratch
        self.sidecars: Sidecars = read_sidecars(path)
        # Journals first, files after: what is unlinked in between is in a file by then.
        self.opened: Opened = open_journals(self._heads)
        self.listing: Listing = list_files(path)
        self.sidecars = read_sidecars(path)  # again: an end is told before a journal goes
        self.run_id = self._run_id()
        self.rests: dict[Stem, Rest] = {}
        self.held: dict[Stem, list[Held]] = {}
        for held in self.listing.held():
            self.held.setdefault((held.attempt, held.stem), []).append(held)

    def _run_id(self) -> str:
        """The id in ``run.json``, else what the ranks say, else the directory's name."""
        identities = [journal.identity for journal, _ in self.opened.journals]
        identities += self.sidecars.identities.values()
        said = (str(identity["uid"]) for identity in identities if identity.get("uid"))
        return str(run_json(self.path).get("uid") or next(said, run_id_of(self.path)))

    def _heads(self) -> list[Path]:
        """The heads in the attempts, and those that ranks keep in scratch on this machine."""
        found = [
            head
            for folder in attempt_folders(self.path).values()
            for head in find_journals(folder / "journal")
        ]
        names = {head.name for head in found}
        for (_, stem), identity in self.sidecars.identities.items():
            head = Path(str(identity.get("journal", "")), f"{stem}{HEAD_SUFFIX}")
            if head.is_absolute() and head.name not in names and head.is_file():
                found.append(head)
        return found

    def gather(
        self,
    ) -> tuple[str, str, tuple[Attempt, ...], Coverage, dict[str, list[pa.Table | Path]]]:
        """Id and label of the run, its attempts, the coverage, and what its tables are made of."""
        for journal, end in self.opened.journals:
            key = journal.attempt, journal.stem
            self.rests[key] = rest_of(journal, end, self.listing, self.path, self.scratch)
        self._settle_unsure()
        remaining = [
            Held(
                journal.attempt,
                journal.rank,
                journal.stem,
                spans=self.rests[journal.attempt, journal.stem].rows,
                collectives=self.rests[journal.attempt, journal.stem].collectives,
            )
            for journal, _ in self.opened.journals
        ]
        several, losers = duplicates([*self.listing.held(), *remaining])
        attempts = self._attempts()
        sources = self._sources(losers)
        coverage = self._coverage(attempts, several, losers)
        self._check_content(coverage)
        known = Known(self.opened, self.rests, self.held, self.sidecars, losers)
        facts = run_facts(known, self.run_id)
        if facts:
            sources["facts"].append(table_of(facts))
        label = run_json(self.path).get("label") or self.path.resolve().name
        return self.run_id, str(label), attempts, coverage, sources

    def _settle_unsure(self) -> None:
        """Files beside a damaged file of spans count unless their journal told it all again."""
        for footer in self.listing.unsure:
            told = False
            for held in footer.held:
                key = held.attempt, held.stem
                slots = [run for one in self.held.get(key, []) for run in one.slots]
                slots += self.rests[key].slots if key in self.rests else []
                told |= any(clip(slots, *run) for run in held.slots)
            if not told:
                self.listing.files[footer.table].append(footer)

    def _attempts(self) -> tuple[Attempt, ...]:
        ranks: dict[int, set[int]] = {}
        sizes: dict[int, list[int]] = {}
        for held in (held for listed in self.held.values() for held in listed):
            ranks.setdefault(held.attempt, set()).add(held.rank)
            sizes.setdefault(held.attempt, []).append(held.world_size or 0)
        for journal, _ in self.opened.journals:
            ranks.setdefault(journal.attempt, set()).add(journal.rank)
            size = journal.identity.get("world_size") or 0
            sizes.setdefault(journal.attempt, []).append(int(size))
        for (attempt, _), identity in self.sidecars.identities.items():
            sizes.setdefault(attempt, []).append(int(identity.get("world_size") or 0))
        return tuple(
            Attempt(
                number,
                max(sizes.get(number, [])) or max(ranks.get(number, {-1})) + 1,
                tuple(sorted(ranks.get(number, ()))),
            )
            for number in sorted(ranks.keys() | sizes.keys())
        )

    def _sources(self, losers: set[Stem]) -> dict[str, list[pa.Table | Path]]:
        sources: dict[str, list[pa.Table | Path]] = {}
        for table, footers in self.listing.files.items():
            sources[table] = [
                source for footer in footers for source in _without(footer, losers) if footer.rows
            ]
        rests = [rest for key, rest in self.rests.items() if key not in losers]
        for table, found in (
            ("spans", [source for rest in rests for source in rest.spans]),
            ("events", [source for rest in rests for source in rest.events]),
        ):
            sources[table] += [source for source in found if isinstance(source, Path)]
            tables = [source for source in found if isinstance(source, pa.Table)]
            if tables:
                sources[table].append(pa.concat_tables(tables).unify_dictionaries())
        return sources

    def _coverage(
        self,
        attempts: Iterable[Attempt],
        several: Iterable[Duplicate],
        losers: set[Stem],
    ) -> Coverage:
        ends = [
            held.final
            for key, listed in self.held.items()
            for held in listed
            if held.final and key not in losers
        ]
        rests = [rest for key, rest in self.rests.items() if key not in losers]
        last = max(attempts, key=lambda attempt: attempt.number, default=None)
        return Coverage(
            files=self.listing.found + self.opened.found + self.sidecars.found,
            skipped=(*self.listing.skipped, *self.opened.skipped, *self.sidecars.skipped),
            dropped_spans=sum(end.get("dropped", 0) for end in ends) + sum(r.lost for r in rests),
            open_spans=sum(end.get("open", 0) for end in ends) + sum(r.opened for r in rests),
            torn_slots=sum(end.get("torn", 0) for end in ends) + sum(r.torn for r in rests),
            missing_ranks=last.missing_ranks if last else (),
            duplicate_ranks=tuple(several),
            elsewhere=tuple(self._elsewhere()),
            exports=tuple(LiveExport.read(*told) for told in self.sidecars.exports),
        )

    def _elsewhere(self) -> Iterable[Elsewhere]:
        here = {(journal.attempt, journal.stem) for journal, _ in self.opened.journals}
        for (attempt, stem), identity in self.sidecars.identities.items():
            finished = any(held.final for held in self.held.get((attempt, stem), []))
            place = identity.get("journal")
            if finished or (attempt, stem) in here or not place:
                continue
            if not Path(str(place)).is_relative_to(self.path.resolve()):
                rank = identity.get("rank", rank_of(stem)) or 0
                yield Elsewhere(attempt, int(rank), str(identity.get("host", "")), str(place))

    def _check_content(self, coverage: Coverage) -> None:
        """Refuse a run of which nothing can be read."""
        if self.opened.journals or any(self.listing.files.values()):
            return
        data = [*self.listing.skipped, *self.opened.skipped]
        if data:
            (first, reason), more = data[0], len(data) - 1
            others = f" (and {more} more)" if more else ""
            named = f"{os.path.relpath(first, self.path)}: {reason}{others}"
            raise InputError(self.path, f"nothing in it can be read: {named}")
        if coverage.elsewhere:
            places = sorted({f"{one.host}:{one.path}" for one in coverage.elsewhere})
            raise InputError(
                self.path,
                f"its journals lie elsewhere, collect them first: {', '.join(places[:5])}",
            )
        raise InputError(self.path, "nothing was recorded in this run")


def _without(footer: Footer, losers: set[Stem]) -> list[pa.Table | Path]:
    """A file, or what is left of it when processes that do not count are in it too."""
    out = [held for held in footer.held if (held.attempt, held.stem) in losers]
    if not out:
        return [footer.path]
    if len(out) == len(footer.held):
        return []
    rows = pq.read_table(footer.path, partitioning=None)
    for held in out:
        theirs = pc.and_(
            pc.equal(rows["attempt"], held.attempt),
            pc.equal(pc.fill_null(rows["rank"], -1), held.rank),
        )
        rows = rows.filter(pc.invert(theirs))
    return [cast(rows, TABLES[footer.table])]
