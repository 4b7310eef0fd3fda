"""start() and stop(): the session of this process, and what ends it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from typing import Any

from tracekit import recorder
from tracekit.recorder import Recorder, say_once
from tracekit.session._environment import read_environment
from tracekit.session._exits import before_child_exits
from tracekit.session._identity import Options
from tracekit.session._live import live_rule
from tracekit.session._session import ASSUMED, Session

__all__ = ["begin", "current_session", "start", "stop"]

_session: Session | None = None
_session_lock = threading.RLock()


def current_session() -> Session | None:
    """The session of this process, if one is running."""
    return _session


def start(
    run: str | None = None,
    dir: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    agent: bool = True,
    quota_bytes: int = 1 << 30,
    segment_bytes: int = 4 << 20,
    stall_s: float | None = None,
    role: Mapping[str, int] | None = None,
    overhead: str | None = None,
    span_exporter: Any = None,
    otlp: bool | str | None = None,
    nccl_log: bool = False,
) -> Session | None:
    """Begin to record this process; a second call returns the session that runs.

    Args:
        run: label of the run; else ``TRACEKIT_RUN``, else the script's name.
        dir: where runs lie; else ``TRACEKIT_DIR``, else ``runs``.
        rank, world_size: else from torchrun, Slurm, MPI or TF_CONFIG; else rank 0 of 1.
        agent: start the node's agent, which turns journals into Parquet beside the job.
        quota_bytes: most bytes of journal a rank keeps; beyond it the oldest go, counted.
        segment_bytes: bytes of one journal file.
        stall_s: after how long without an end of a step stacks are taken; else 5 × the median
            step, at least 10 s.
        role: this rank's place in the parallel groups, as ``{"dp": 0, "pp": 1, "tp": 3}``; else
            what adapters find out.
        overhead: "measure" lets blocks of 25 steps go untraced, the same on all ranks, so that
            the report can say by how much tracing slows the training.
        span_exporter: a ``SpanExporter`` of OpenTelemetry's SDK that gets the spans of this process
            while it runs, from a thread; at stop and exit it has 5 s for the rest.
        otlp: True lets the node's agent export metrics, and steps as traces, by OTLP, to where
            ``OTEL_EXPORTER_OTLP_ENDPOINT`` says; a text as ``first=10,every=100,slow=2`` or ``all``
            says which ones. Else ``TRACEKIT_OTLP``, else whether that environment is there.
        nccl_log: let NCCL write its log of start-up and network into the run, some 100 KB a
            process, where ``analyze`` reads it; before NCCL's first communicator. Sets
            ``NCCL_DEBUG``, ``NCCL_DEBUG_SUBSYS``, ``NCCL_DEBUG_FILE`` and its timestamps, unless
            set.

    Returns None where ``TRACEKIT_DISABLED`` is set. Raises ``UsageError`` for a rank outside the
    world, a span_exporter that is none, and an OTLP environment that cannot be meant as it is;
    ``MissingDependency`` where the extra of an exporter is missing; trouble with the disk is said
    once and never raised.
    """
    session = begin(
        Options(
            run=run,
            dir=dir,
            rank=rank,
            world_size=world_size,
            agent=agent,
            quota_bytes=quota_bytes,
            segment_bytes=segment_bytes,
            stall_s=stall_s,
            role=role,
            overhead=overhead,
            span_exporter=span_exporter,
            otlp=otlp,
            nccl_log=nccl_log,
        )
    )
    if session is not None and session.identity.assumed:
        say_once(ASSUMED)
        session.start_agent()
    return session


def begin(options: Options) -> Session | None:
    """Begin to record without an agent and without a word; the session that runs, or None."""
    global _session
    with _session_lock:
        environment = read_environment()
        exporter = None if environment.disabled else options.span_exporter
        if exporter is not None:
            from tracekit.session._handover import check

            check(exporter)
        if _session is None and not environment.disabled:
            rule = live_rule(options.otlp, environment.otlp)
            try:
                _session = Session(options, environment, rule)
                before_child_exits(_child_exits)
            except OSError as error:
                where = options.dir or environment.directory or "runs"
                say_once(f"nothing is recorded: {where}: {error.strerror or error}")
        if _session is not None and exporter is not None:
            _session.hand_over(exporter)
        return _session


def stop() -> None:
    """End recording; also done at exit. A missing stop loses nothing."""
    _stop(at_exit=False)


def _stop(at_exit: bool) -> None:
    global _session
    with _session_lock:
        session, _session = _session, None
        if session is not None:
            session.close(at_exit)
            recorder.tell_stopped()


def _child_exits(error: BaseException | None) -> None:
    session = _session
    if session is not None and os.getpid() == session.pid:
        session.note_exit(error)
        _stop(at_exit=False)


def _starter() -> Recorder | None:
    """How an adapter gets a recorder when the user called no start(); it binds right after."""
    begin(Options())
    return recorder.current()


def _bind(**known: Any) -> None:
    if _session is not None:
        _session.bind(**known)


def _rank(rank: int) -> Recorder | None:
    return _session.rank(rank) if _session is not None else None


def _forget_session() -> None:
    """In a forked child the parent's session is not ours to stop."""
    global _session, _session_lock
    _session = None
    _session_lock = threading.RLock()


recorder.set_starter(_starter, _bind, _rank)
atexit.register(_stop, at_exit=True)
os.register_at_fork(after_in_child=_forget_session)
