"""A session: recorder, journal, agent and adapters joined for one process."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit import recorder
from tracekit.journal import JournalWriter
from tracekit.model import host8, offset_now
from tracekit.recorder import Home, Recorder, say_once
from tracekit.session._environment import (
    PARENT,
    Environment,
    Machine,
    machine,
    settings,
)
from tracekit.session._exits import note_exception, note_exit
from tracekit.session._identity import Identity, Options, identity_of
from tracekit.session._launch import launch_agent
from tracekit.session._nccl_log import NcclLog
from tracekit.session._otel_parent import otel_parent
from tracekit.session._ring import answer
from tracekit.session._rundir import (
    Place,
    clock_offset,
    journal_folder,
    remove_if_empty,
    run_directory,
)
from tracekit.session._stacks import StackSignal

if TYPE_CHECKING:
    from tracekit.session._handover import Handover

__all__ = ["ASSUMED", "Session"]

_VERSION = "0.1.0"
_OPEN_TO_AGREEMENT = ("fresh", "cluster", "launcher_process")
"""Where an id comes from that the ranks may replace by one they agree on."""
ASSUMED = "no rank in the environment: this process is rank 0 of 1 until told more"


class Session:
    """What ``start`` began: its run directory, and the recorders of the ranks in this process."""

    def __init__(
        self, options: Options, environment: Environment, live_rule: str | None = None
    ) -> None:
        self.options = options
        self._live_rule = live_rule
        self._environment = environment
        self._machine: Machine = machine()
        self._lock = threading.RLock()
        self._writers: dict[int, tuple[Recorder, JournalWriter, Place]] = {}
        self._base = Path(options.dir or environment.directory or "runs").absolute()
        self._label = options.run or environment.label
        self._name = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else "run"
        parent = environment.parent
        if parent is not None and options.dir is None:
            self._base = Path(str(parent.get("dir", self._base)))
            self._name = str(parent.get("label", "run"))
            if parent.get("labelled", True):
                self._label = self._label or self._name
        if environment.apart is not None:
            self._name = f"{self._name}-{environment.apart}"
            self._label = self._label and f"{self._label}-{environment.apart}"
        self.identity = identity_of(options, environment, self._base)
        self.run_dir: Path = self._base
        self._agent_started = False
        self._stacks: StackSignal | None = None
        self._had_parent = PARENT in os.environ
        self._otel_parent = otel_parent(environment.traceparent)
        self.handover: Handover | None = None
        self._nccl_log = NcclLog() if options.nccl_log else None
        self._first = self._add(self.identity)
        if not self.identity.assumed:
            self.start_agent()
        self._tell_children()

    # Ranks

    def _add(self, identity: Identity) -> Recorder:
        """Make the journal and the recorder of one rank of this process."""
        with self._lock:
            place = self._place(identity)
            if self._nccl_log is not None:
                self._nccl_log.point(place.attempt_dir)
            if self._stacks is None:
                self._stacks = StackSignal(place.attempt_dir / "ranks" / f"{place.stem}.stacks.txt")
            described = self._describe(identity, place)
            writer = JournalWriter(
                place.journal_dir,
                place.stem,
                described,
                segment_bytes=self.options.segment_bytes,
                quota_bytes=self.options.quota_bytes,
                say=say_once,
            )
            if not self._writers:
                writer.answer = lambda question: answer(question, self._places()[id(writer)])
            made = Recorder(writer, identity.rank, identity.world_size, identity.attempt)
            writer.retire = made.retire_before
            made.home = _home(place, described)
            made.fact("environment", settings())
            made.fact("cost", {"span_ns": recorder.cost_of(_one_span)})
            if self._otel_parent is not None:
                made.fact("otel_parent", self._otel_parent)
            self._measure_overhead(made)
            self._write_rank_file(place, described)
            self._writers[identity.rank] = made, writer, place
            recorder.install(made, default=len(self._writers) == 1)
            return made

    def _measure_overhead(self, made: Recorder) -> None:
        """Several ranks of one process are in different steps: then nothing pauses."""
        if self.options.overhead != "measure":
            return
        made.measures_overhead = not self._writers
        for other, _, _ in self._writers.values():
            other.measures_overhead = recorder.pause.on = False

    def rank(self, rank: int) -> Recorder | None:
        """The recorder of another rank that lives in this process, made when new."""
        with self._lock:
            if rank in self._writers:
                return self._writers[rank][0]
            if not 0 <= rank < self.identity.world_size:
                say_once(f"as_rank({rank}): the world has {self.identity.world_size} ranks")
                return None
            try:
                return self._add(replace(self.identity, rank=rank, local_rank=rank))
            except OSError as error:
                say_once(f"rank {rank} is not recorded: {error}")
                return None

    def _place(self, identity: Identity) -> Place:
        self.run_dir, self._label_used = run_directory(
            self._base, self._label, self._name, identity.uid
        )
        attempt_dir = self.run_dir / f"attempt-{identity.attempt:03d}"
        (attempt_dir / "ranks").mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.gettempdir())
        journal_dir = journal_folder(attempt_dir, identity.uid, scratch)
        journal_dir.mkdir(parents=True, exist_ok=True)
        (attempt_dir / "journal").mkdir(exist_ok=True)
        host = host8(self._machine.host, self._machine.boot_id)
        stem = f"rank-{identity.rank:05d}.{host}-{self._machine.pid}"
        return Place(self.run_dir, attempt_dir, journal_dir, stem)

    def _describe(self, identity: Identity, place: Place) -> dict[str, Any]:
        here = self._machine
        domain = f"{here.boot_id}:{here.time_ns}"
        stacks = self._stacks
        return {
            **asdict(identity),
            **asdict(here),
            "label": self._label_used,
            "role": {} if self._writers else dict(self.options.role or {}),
            "provisional": identity.assumed,
            "launcher": self._environment.launcher,
            "clock_domain": domain,
            "clock_offset_ns": clock_offset(place.attempt_dir, domain, offset_now()),
            "started_ns": time.time_ns(),
            "journal": str(place.journal_dir),
            "stack_signal": stacks.number if stacks else None,
            "stack_file": str(stacks.path) if stacks else None,
            "argv0": sys.argv[0] if sys.argv else None,
            "python": sys.version.split()[0],
            "tracekit": _VERSION,
        }

    def _write_rank_file(self, place: Place, described: dict[str, Any]) -> None:
        path = place.attempt_dir / "ranks" / f"{place.stem}.json"
        temporary = path.with_name(f".{path.name}")
        try:
            temporary.write_text(json.dumps(described))
            os.replace(temporary, path)  # nobody sees half of it
        except OSError as error:
            say_once(f"{path} was not written: {error.strerror or error}")

    # Identity that becomes known later

    def bind(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        uid_store: Callable[[str, str], str] | None = None,
        alone: bool = False,
    ) -> None:
        """Take rank, world size and uid from a process group, and move the files to their place."""
        with self._lock:
            if len(self._writers) != 1:
                return
            known = self.identity
            changed = replace(known, assumed=known.assumed and not alone)
            if rank is not None and self.options.rank is None:
                local = known.local_rank if not known.assumed else rank
                changed = replace(changed, rank=rank, local_rank=local, assumed=False)
            if world_size is not None and self.options.world_size is None:
                local_world = world_size if known.assumed else known.local_world_size
                changed = replace(changed, world_size=world_size, local_world_size=local_world)
            if uid_store is not None and known.uid_source in _OPEN_TO_AGREEMENT:
                try:
                    uid = uid_store("tracekit/uid", known.uid)
                    changed = replace(changed, uid=str(uid), uid_source="store")
                except Exception as error:
                    say_once(f"the ranks could not agree on one run id: {error}")
            if changed != known:
                self._move(changed)
            if self.identity.assumed:
                say_once(ASSUMED)
            self.start_agent()
            self._tell_children()

    def _move(self, identity: Identity) -> None:
        """Rename the files of the one journal; they stay mapped, nothing recorded is lost."""
        (made, writer, old) = self._writers.pop(self.identity.rank)
        try:
            new = self._place(identity)
            if self._nccl_log is not None:
                self._nccl_log.point(new.attempt_dir)
            if new != old:
                with writer.lock:
                    for path in writer.files():
                        os.rename(path, new.journal_dir / (new.stem + path.name[len(old.stem) :]))
                    writer.moved(new.journal_dir, new.stem)
                if self._stacks is not None:
                    self._stacks.move(new.attempt_dir / "ranks" / f"{new.stem}.stacks.txt")
            (old.attempt_dir / "ranks" / f"{old.stem}.json").unlink(missing_ok=True)
            described = self._describe(identity, new)
        except OSError as error:
            say_once(f"the journal stays at {old.journal_dir}: {error.strerror or error}")
            new, described = old, self._describe(identity, old)
        self.identity = identity
        writer.identify(described)
        self._write_rank_file(new, described)
        made.rank, made.world_size = identity.rank, identity.world_size
        made.home = _home(new, described)
        self._writers[identity.rank] = made, writer, new
        recorder.renumber(made)
        if new.run_dir != old.run_dir:
            self._agent_started = False
            remove_if_empty(old.run_dir, old.attempt_dir)

    # The user's exporter

    def hand_over(self, span_exporter: Any) -> None:
        """Hand what this process records to an exporter of OpenTelemetry; the first one stays."""
        from tracekit.session._handover import Handover

        with self._lock:
            if self.handover is None:
                self.handover = Handover(span_exporter, self._places)
            elif self.handover.span_exporter is not span_exporter:
                say_once("span_exporter= of a second start() is ignored: the first one goes on")

    def _places(self) -> dict[int, Place]:
        """Where the journals of this process lie, by what stays when a rank gets its number."""
        return {id(writer): place for _, writer, place in list(self._writers.values())}

    # The agent and the children

    def start_agent(self) -> None:
        """Start the node's agent; local rank 0 does it for all ranks of the node."""
        if self._agent_started or not self.options.agent or self.identity.local_rank != 0:
            return
        _, _, place = self._writers[self.identity.rank]
        arguments = ["--attempt", str(self.identity.attempt)]
        arguments += ["--ranks", str(self.identity.local_world_size)]
        arguments += ["--journal", str(place.journal_dir)]
        arguments += ["--host", host8(self._machine.host, self._machine.boot_id)]
        if self.options.stall_s is not None:
            arguments += ["--stall", str(self.options.stall_s)]
        if self._live_rule is not None:
            arguments += ["--otlp", self._live_rule]
        self._agent_started = launch_agent(place.run_dir, arguments)

    def _tell_children(self) -> None:
        """Let processes that this one spawns join the run; forked ones stay silent."""
        if not self._had_parent:
            os.environ[PARENT] = json.dumps(
                {
                    "dir": str(self._base),
                    "label": self._label_used,
                    "labelled": bool(self._label),
                    "uid": self.identity.uid,
                    "attempt": self.identity.attempt,
                    "pid": os.getpid(),
                }
            )

    @property
    def pid(self) -> int:
        """The process that the session records."""
        return self._machine.pid

    def note_exit(self, error: BaseException | None) -> None:
        """Write down what is about to end the process, ``SystemExit`` too."""
        for made, _, _ in list(self._writers.values()):
            with contextlib.suppress(Exception):
                note_exit(made, error)

    def close(self, at_exit: bool = False) -> None:
        """Stop recording; what was recorded stays for the agent and for every later command."""
        with self._lock:
            if not self._had_parent:
                os.environ.pop(PARENT, None)
            if self.handover is not None:
                self.handover.look()  # once the journals are closed the agent may remove them
            for made, _, _ in self._writers.values():
                if at_exit:
                    with contextlib.suppress(Exception):
                        note_exception(made)
                made.close()
                recorder.remove(made)
            if self.handover is not None:
                self.handover.look()
            self._writers.clear()
            if self._stacks is not None:
                self._stacks.close()
            if self.handover is not None:
                self.handover.finish()


def _home(place: Place, described: dict[str, Any]) -> Home:
    return Home(place.attempt_dir, place.stem, described["clock_offset_ns"])


_SPAN = recorder.span_type("span")


def _one_span() -> None:
    with _SPAN:
        pass
