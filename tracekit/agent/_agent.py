"""The agent of a node: turns the journals of its ranks into Parquet while they train.

It is started by local rank 0 in a session of its own, without torch; it outlives the ranks and
ends when all of them are gone and everything is shipped. When it dies, nothing is lost: every
later command reads the journals.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.agent._options import AgentOptions
from tracekit.agent._watch import Vitals, Watch
from tracekit.dataset import convert, drop_covered_segments, finalize
from tracekit.errors import TracekitError
from tracekit.journal.format import RING_SUFFIX, Live
from tracekit.journal.process import boot_id, process_start
from tracekit.journal.reader import JournalReader, find_journals, open_journal
from tracekit.model import host8, kind_code
from tracekit.model.record import RecordType

if TYPE_CHECKING:
    from tracekit.exporters.live import Signals

__all__ = ["Agent", "main"]

_TICK_S = 0.5
_SHIP_EVERY_S = 5.0
_FEW_RECORDS = 4096
_SHIP_FEW_EVERY_S = 30.0
"""A file for a few records only so often, unless the journal's host could be lost with them."""
_WAIT_FOR_RANKS_S = 120.0
_FLUSH_WITHIN_S = 5.0
"""Given to live export once the ranks are gone."""
_MOST_FAILURES = 5
_MOST_MESSAGES = 100
_NEWEST_STEPS = 64
_STEP = kind_code("step")


class Agent:
    """Serves the ranks of one host in one attempt; one agent at a time does so."""

    def __init__(self, options: AgentOptions) -> None:
        self.options = options
        self.attempt_dir = options.run_dir / f"attempt-{options.attempt:03d}"
        self.folders = options.journals or (self.attempt_dir / "journal",)
        self._host = options.host
        self._journals: dict[str, JournalReader] = {}
        self._watches: dict[str, Watch] = {}
        self._done: set[str] = set()
        self._bad: set[Path] = set()
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._shipped: dict[str, float] = {}
        self._logged: set[str] = set()
        self._adopted: set[Path] = set()
        self._ending = False
        self._live: Signals | None = None

    def run(self) -> int:
        """Serve until all ranks are gone and shipped; 0 also when another agent does it."""
        with contextlib.suppress(OSError):
            os.nice(10)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        with self._alone() as alone:
            if not alone:
                return 0
            self._guarded(self._start_live)
            begun = time.monotonic()
            shipped = begun
            while not self._ending:
                self._guarded(self._discover)
                self._guarded(self._watch)
                self._guarded(self._take_rings)
                now = time.monotonic()
                if now - shipped >= _SHIP_EVERY_S:
                    shipped = now
                    self._each(self._ship)
                    self._guarded(self._adopt)
                self._each(self._finish)
                if self._served(time.monotonic() - begun):
                    break
                time.sleep(_TICK_S)
            else:
                self._each(self._ship)
                self._each(self._finish)
            self._guarded(self._adopt)
            self._guarded(self._take_rings)
            self._guarded(self._end_live)
        return 0

    def _start_live(self) -> None:
        told = self.options
        if told.otlp is not None:
            from tracekit.exporters.live import Source, export_live

            source = Source(told.run_dir, told.attempt, told.host, told.ranks)
            self._live = export_live(source, told.otlp)

    def _end_live(self) -> None:
        if self._live is not None:
            for wrong in self._live.finish(_FLUSH_WITHIN_S):
                self._log(wrong)

    def _end(self, *_: Any) -> None:
        self._ending = True

    def _served(self, waited_s: float) -> bool:
        """Whether nothing is left to do here."""
        if self._journals:
            return False
        if not self.attempt_dir.exists():
            return True
        served = len(self._done) + len(self._bad)
        return served + self._gone() >= self.options.ranks or waited_s > _WAIT_FOR_RANKS_S

    def _gone(self) -> int:
        """Ranks of this host that are dead and never had a journal: their disk was full."""
        gone = 0
        for path in (self.attempt_dir / "ranks").glob(f"rank-*.{self._host}-*.json"):
            stem = path.name.removesuffix(".json")
            if "." in stem.partition(".")[2] or any(stem in key for key in self._done):
                continue
            with contextlib.suppress(OSError, ValueError, KeyError):
                identity = json.loads(path.read_bytes())
                gone += process_start(identity["pid"]) != identity["pid_start"]
        return gone

    @contextlib.contextmanager
    def _alone(self) -> Any:
        """Hold the lock of this host's agent; False when another holds it."""
        try:
            path = self.attempt_dir / f"agent-{self._host}.lock"
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            yield False
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
            with contextlib.suppress(OSError):
                path.unlink()
        finally:
            os.close(file)

    # What it does, again and again

    def _discover(self) -> None:
        """Open the journals of this host that appeared, refresh the others."""
        for folder in self.folders:
            for head in find_journals(folder):
                key = head.name
                if head in self._bad or key in self._done or f".{self._host}-" not in key:
                    continue
                try:
                    if key in self._journals:
                        self._journals[key].refresh()
                    else:
                        self._journals[key] = open_journal(head)
                except FileNotFoundError:
                    continue
                except TracekitError as error:
                    self._bad.add(head)
                    self._log(str(error))
        for key, reader in list(self._journals.items()):
            if not reader.path.exists():  # renamed: its rank or run became known
                del self._journals[key]
                self._watches.pop(key, None)

    def _watch(self) -> None:
        """Look whether a rank is stuck."""
        for key, reader in self._journals.items():
            if not reader.writing():
                continue
            watch = self._watches.get(key)
            if watch is None:
                watch = self._watches[key] = self._new_watch(reader)
            watch.look(_vitals(reader), time.monotonic_ns(), reader.offset_ns)

    def _new_watch(self, reader: JournalReader) -> Watch:
        identity = reader.identity
        stack_file = identity.get("stack_file")
        watch = Watch(
            reader.pid,
            identity.get("stack_signal"),
            Path(stack_file) if stack_file else None,
            self.attempt_dir / "ranks" / f"{reader.stem}.stacks.json",
            reader.ask,
        )
        if self.options.stall_s is not None:
            watch.stall_ns = int(self.options.stall_s * 1e9)
        return watch

    def _take_rings(self) -> None:
        """Move what ranks answered into the run."""
        for folder in self.folders:
            for path in folder.glob(f"rank-*.{self._host}-*{RING_SUFFIX}"):
                place = self.attempt_dir / "flight_recorder"
                place.mkdir(exist_ok=True)
                scratch = place / f".{path.name}.{os.getpid()}"
                shutil.move(path, scratch)  # keeps the time at which it was written
                os.replace(scratch, place / path.name.removesuffix(RING_SUFFIX))

    def _ship(self, key: str) -> None:
        """Convert what a living rank recorded since the last time."""
        reader = self._journals[key]
        remote = reader.folder.parent != self.attempt_dir
        now = time.monotonic()
        patience = _SHIP_FEW_EVERY_S if self._live is None else _SHIP_EVERY_S
        patient = not remote and now - self._shipped.get(key, 0.0) < patience
        if not reader.writing():
            return
        done = convert(reader, self.options.run_dir, least_records=_FEW_RECORDS if patient else 1)
        if done.files:
            self._shipped[key] = now
            drop_covered_segments(reader, self.options.run_dir)

    def _finish(self, key: str) -> None:
        """Convert the rest of a rank that stopped or died, and remove its journal."""
        reader = self._journals[key]
        if not reader.writing() and finalize(reader, self.options.run_dir).final:
            self._done.add(key)
            del self._journals[key]

    def _adopt(self) -> None:
        """Read the profiler windows that ranks of this host finished."""
        if not (self.attempt_dir / "xplane").is_dir():
            return
        from tracekit.adapters.xplane import adopt

        told = self.options
        for path, reason in adopt(told.run_dir, told.attempt, self._host, self._adopted).skipped:
            self._log(f"{path}: {reason}; skipped")

    def _each(self, work: Callable[[str], None]) -> None:
        """Serve every journal; what fails with one again and again is left to later commands."""
        for key in list(self._journals):
            if time.monotonic() < self._not_before.get(key, 0.0):
                continue
            try:
                work(key)
                self._failures.pop(key, None)
            except Exception:
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                self._not_before[key] = time.monotonic() + 2**failures
                if failures == 1:
                    self._log(f"{key}: {traceback.format_exc()}")
                if failures >= _MOST_FAILURES:
                    self._log(f"{key}: given up; nothing is lost, every command reads journals")
                    self._bad.add(self._journals.pop(key).path)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Go on with the rest whatever happens, and say it once."""
        try:
            work()
        except Exception:
            self._log(traceback.format_exc())

    def _log(self, message: str) -> None:
        if message in self._logged or len(self._logged) >= _MOST_MESSAGES:
            return
        self._logged.add(message)
        with (
            contextlib.suppress(OSError),
            open(self.attempt_dir / f"agent-{self._host}.log", "a") as file,
        ):
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message.rstrip()}\n")


def _vitals(reader: JournalReader) -> Vitals:
    """What the head says about the progress of a rank."""
    starts = [start for start, what, *_ in reader.open_rows().tolist() if what & 0xFF == _STEP]
    return Vitals(
        started=int(reader.identity.get("started_ns", 0)) - reader.offset_ns,
        step_start=max(starts, default=None),
        heartbeat=reader.live(Live.HEARTBEAT),
        step_times=lambda: _step_times(reader),
    )


def _step_times(reader: JournalReader) -> list[int]:
    """How long the newest steps took, from the segments that are still there; nanoseconds."""
    times: list[int] = []
    for records in reader.records():
        steps = (records.types == RecordType.SPAN) & (records.rows[:, 2] & 0xFF == _STEP)
        times += records.rows[steps, 1].tolist()
    return times[-_NEWEST_STEPS:]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the ranks of a run on this host until they are gone and everything is shipped."""
    parser = argparse.ArgumentParser(prog="tracekit.agent", description=main.__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--journal", type=Path, action="append", default=[])
    parser.add_argument("--host", default=host8(socket.gethostname(), boot_id()))
    parser.add_argument("--stall", type=float, default=None)
    parser.add_argument("--otlp", metavar="RULE", default=None)
    given = parser.parse_args(argv)
    options = AgentOptions(
        given.run_dir,
        given.host,
        given.attempt,
        given.ranks,
        tuple(given.journal),
        given.stall,
        given.otlp,
    )
    return Agent(options).run()
