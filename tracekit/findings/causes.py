"""What can end or stop a training, as one table: how each cause is told, and what follows from it.

A new cause, or a new effect of a known one, is a new row. The order counts: of causes that nothing
else explains, the first one is looked at first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["CAUSES", "XIDS", "Cause", "cause_of_text"]


@dataclass(frozen=True, slots=True)
class Cause:
    """A class of causes."""

    means: str
    ids: tuple[str, ...]
    """The findings under which it is told."""
    explains: frozenset[str]
    """Classes that are seen where this one is the cause: effects, and never causes beside it."""
    next: tuple[str, ...]
    """Keys of the words that say what to do next, of sources that advise nothing themselves."""


def _set(*parts: str) -> frozenset[str]:
    return frozenset(name for part in parts for name in part.split())


_ENDS = "aborted exit vanished closed terminated"
"""How ranks end because another one did."""
_WAITS = "timed_out rank_missing"
"""How ranks are seen that wait for another one."""
_HANGS = f"{_WAITS} rank_busy rank_stopped rank_gil cycle"
_LINKS = "net_retry net_port net_gid net_acs net_gdr net_firewall net_socket"
_AFTER_DEATH = f"{_ENDS} {_WAITS} net_retry net_firewall"
_AFTER_FAULT = f"{_AFTER_DEATH} error killed_signal usage"
_AFTER_SETUP = f"{_ENDS} {_WAITS} {_LINKS} error usage mismatch"


def _fault(means: str, *advice: str, after: str = "", ids: str = "crash.error") -> Cause:
    return Cause(means, tuple(ids.split()), _set(_AFTER_FAULT, after), advice)


def _network(means: str, *advice: str, after: str = "", ids: str = "comm.error") -> Cause:
    return Cause(means, tuple(ids.split()), _set(_ENDS, _WAITS, after), advice)


CAUSES: Mapping[str, Cause] = MappingProxyType(
    {
        "killed_oom": _fault(
            "the host's memory ran out: its kernel or a scheduler killed the rank, or it gave up",
            "advice.log.memory", after="gpu_xid", ids="crash.killed crash.oom",
        ),
        "gpu_ecc": _fault(
            "the memory of a GPU has errors that cannot be corrected", "advice.log.gpu",
            after="gpu_xid",
        ),
        "gpu_xid": _fault(
            "the driver reports an error of a GPU (Xid)", "advice.log.gpu", after="gpu_illegal"
        ),
        "gpu_oom": _fault("the memory of a GPU ran out", "advice.oom", ids="crash.oom"),
        "gpu_assert": _fault(
            "an assertion failed in a kernel on a GPU", "advice.log.illegal"
        ),
        "host_memlock": _fault(
            "a limit of locked memory", "advice.log.host", after=_LINKS,
            ids="host.limit crash.error",
        ),
        "host_files": _fault(
            "a limit of open files", "advice.log.host", after=_LINKS, ids="host.limit crash.error"
        ),
        "host_shm": _fault(
            "shared memory (/dev/shm) is too small", "advice.log.host",
            ids="host.limit crash.error",
        ),
        "fabric_manager": _fault(
            "the fabric manager of a host's NVLink switches", "advice.log.host",
            ids="host.limit crash.error",
        ),
        "gpu_illegal": _fault(
            "a kernel accessed memory that it may not, or another CUDA error", "advice.log.illegal"
        ),
        "same_device": Cause(
            "two ranks use one GPU", ("config.device", "crash.error"), _set(_AFTER_SETUP),
            ("advice.net.device",),
        ),
        "versions": Cause(
            "processes speak different versions of the communication library",
            ("config.versions",), _set(_AFTER_SETUP), ("advice.net.versions",),
        ),
        "launcher": Cause(
            "processes disagree on who they are", ("config.env",), _set(_AFTER_SETUP),
            ("advice.net.launcher",),
        ),
        "net_interface": _network(
            "an interface that leads to no other host", "advice.net.interface", after=_LINKS
        ),
        "net_port": _network(
            "a port or card failed, flaps, or is slow", "advice.net.pairwise",
            after="net_retry net_gid", ids="comm.error comm.slow_nic comm.bandwidth",
        ),
        "net_acs": _network("ACS or the IOMMU redirect what cards do directly", "advice.net.acs"),
        "net_gdr": _network(
            "GPU Direct RDMA is off or fails", "advice.net.gdr.measure",
            ids="comm.error comm.gdr_off",
        ),
        "net_gid": _network(
            "addresses (GIDs) that do not fit, or rails that are not connected", "advice.net.gid",
            after="net_retry",
        ),
        "sizes": Cause(
            "ranks went into one call with different sizes or types", ("hang.mismatch",),
            _set(_ENDS, _HANGS, "error usage mismatch uneven scheduler"), ("advice.branch",),
        ),
        "error": Cause(
            "the rank raised an error of its own", ("crash.error",), _set(_AFTER_DEATH),
            ("advice.own",),
        ),
        "mismatch": Cause(
            "ranks are in different calls: another order, size or type",
            ("hang.mismatch",), _set(_ENDS, _HANGS, "uneven scheduler"), ("advice.branch",),
        ),
        "killed_signal": Cause(
            "a signal killed the rank", ("crash.killed",), _set(_AFTER_DEATH), ("advice.killed",)
        ),
        "aborted": Cause(
            "a rank aborted (SIGABRT): by itself, or since its watchdog or library gave up",
            ("crash.killed",), _set("exit vanished closed terminated"),
            ("advice.aborted",),
        ),
        "usage": Cause(
            "the communication library was called wrongly", ("crash.error",),
            _set(_AFTER_DEATH), ("advice.net.usage",),
        ),
        "net_retry": _network("a peer did not answer any more", "advice.net.pairwise"),
        "net_firewall": _network("a peer's port cannot be reached", "advice.net.firewall"),
        "net_socket": _network(
            "no network that can be used, or only sockets", "advice.net.hardware",
            ids="comm.error comm.socket_fallback",
        ),
        "uneven": Cause(
            "a rank got fewer batches than the others and left the epoch",
            ("hang.missing_rank", "data.uneven"), _set(_ENDS, _HANGS, "scheduler"),
            ("advice.uneven",),
        ),
        "rank_stopped": Cause(
            "the process of a rank is stopped", ("hang.stopped",), _set(_ENDS, _WAITS, "scheduler"),
            ("advice.continue",),
        ),
        "rank_gil": Cause(
            "a thread of a rank holds the interpreter", ("hang.gil",),
            _set(_ENDS, _WAITS, "scheduler"), ("advice.gil",),
        ),
        "rank_busy": Cause(
            "a rank works on something else: a checkpoint, an evaluation, its data",
            ("hang.busy_rank",), _set(_ENDS, _WAITS, "scheduler"), ("advice.log.look",),
        ),
        "cycle": Cause(
            "ranks wait for each other in a circle", ("hang.cycle",), _set(_ENDS, _WAITS),
            ("advice.branch",),
        ),
        "vanished": Cause(
            "a rank ended and nobody recorded how", ("crash.vanished",),
            _set("closed terminated", _WAITS), ("advice.vanished",),
        ),
        "rank_missing": Cause(
            "a rank did not come to a call that others are in", ("hang.missing_rank",),
            _set("aborted exit closed terminated timed_out scheduler"), ("advice.log.look",),
        ),
        "scheduler": Cause(
            "the scheduler ended the job: time limit, preemption, eviction, a cancel",
            ("crash.killed",), _set(_ENDS), ("advice.log.scheduler",),
        ),
        "exit": Cause(
            "a rank ended with an exit code and wrote no reason", ("crash.error",),
            _set("closed terminated timed_out"), ("advice.log.all",),
        ),
        "timed_out": Cause(
            "ranks waited in vain, and nothing tells for whom", ("hang.missing_rank",),
            _set("aborted closed terminated"), ("advice.log.all",),
        ),
        "closed": Cause(
            "connections were lost, and nothing tells who ended first",
            ("crash.error", "crash.vanished", "comm.error"), _set("terminated"),
            ("advice.log.all",),
        ),
        "terminated": Cause(
            "ranks were asked to end (SIGTERM), and nothing tells why", ("crash.killed",),
            frozenset(), ("advice.ended",),
        ),
    }
)  # fmt: skip
"""Every class by the name it has in evidence, the most basic ones first."""


XIDS: Mapping[str, str] = MappingProxyType(
    {
        "13": "gpu_illegal", "31": "gpu_illegal", "48": "gpu_ecc", "61": "gpu_xid",
        "62": "gpu_xid", "64": "gpu_ecc", "69": "gpu_illegal", "74": "gpu_xid", "79": "gpu_xid",
        "92": "gpu_ecc", "94": "gpu_ecc", "95": "gpu_ecc", "119": "gpu_xid", "120": "gpu_xid",
        "154": "gpu_xid",
    }
)  # fmt: skip
"""Errors of GPUs that end a job, by number; others are effects of its end, or no trouble."""

_TEXTS = (
    ("uncorrectable ecc", "gpu_ecc"),
    ("illegal memory access", "gpu_illegal"),
    ("device-side assert", "gpu_assert"),
    ("cuda out of memory", "gpu_oom"),
    ("hip out of memory", "gpu_oom"),
    ("outofmemoryerror", "gpu_oom"),
    ("memoryerror", "killed_oom"),
    ("cannot allocate memory", "killed_oom"),
    ("out of shared memory", "host_shm"),
    ("too many open files", "host_files"),
)


def cause_of_text(text: str | None) -> str | None:
    """The class that the words of an error give away; None where they do not."""
    lower = (text or "").lower()
    return next((cause for words, cause in _TEXTS if words in lower), None)
