"""Words about what logs told."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.findings._mark import mark as _

__all__ = ["LOG_WORDS"]


LOG_WORDS: Mapping[str, str] = {
    "log.error": _("rank {rank} ended by an error of its own: {text}{where}{victims}"),
    "log.oom": _("rank {rank} ran out of memory: {text}{where}{victims}"),
    "log.killed": _(
        "rank {rank} was killed by signal {signal} ({name}, says the {source}){victims}; {doing}"
    ),
    "log.killed_oom": _("rank {rank} was killed by the kernel for lack of memory: {text}{victims}"),
    "log.killed_oom.likely": _(
        "rank {rank} was killed, and its kernel or scheduler speaks of a lack of memory:"
        " {text}{victims}"
    ),
    "log.killed_oom.unknown": _(
        "a process was killed for lack of memory; no line says of which rank it was: {text}"
    ),
    "log.xid": _("a GPU reported an error to its driver, Xid {xid}: {text}"),
    "log.unknown_rank": _("a process whose rank is not written raised an error: {text}{where}"),
    "log.scheduler": _("the scheduler ended the job ({reason}): {text}"),
    "reason.time limit": _("time limit"),
    "reason.preempted": _("preempted"),
    "reason.node failure": _("node failure"),
    "reason.cancelled": _("cancelled"),
    "reason.evicted": _("evicted"),
    "log.mismatch": _("ranks are in different calls at one place: {calls}"),
    "log.mismatch.odd": _("{ranks} made another call than the others at one place: {calls}"),
    "log.call": _("{ranks} in {op} {seq}{shape}"),
    "log.missing": _("rank {rank} did not come to {call}, say the ranks that did: {doing}"),
    "log.missing.barrier": _("the monitored barrier"),
    "log.missing.collective": _("a collective"),
    "log.silent": _(
        "{waiting} until the time was up; rank {rank} wrote no error and is the one to look at:"
        " {doing}"
    ),
    "log.alone": _(
        "rank {rank} is alone in {call}: it made one call more than {ranks}, or these never came."
        " The call that is too many may be an earlier one"
    ),
    "log.behind": _("{ranks} at collective {seq} of group {group}, others at {ahead}"),
    "log.behind.title": _("{behind}: {ranks} did not keep up or took another turn"),
    "log.ahead.title": _("{behind}: {ranks} made other calls than most, or skipped some"),
    "log.all_waited": _("ranks waited until the time was up; no line tells for whom"),
    "log.only_effects": _(
        "{ranks} lost the connection to another rank; no line tells which one ended first"
    ),
    "log.only_effects.rank": _(
        "{ranks} lost the connection to another rank; rank {rank} left no error and is the one to"
        " look at: {doing}"
    ),
    "log.only_effects.peer": _("{title}. The connection led to {peers}"),
    "log.exits": _(
        "{ranks} ended with an exit code ({code}) at the same time; no line tells why or who was"
        " first"
    ),
    "doing.wrote": _("its last line is “{text}” ({source})"),
    "doing.no_log": _("there is no log of it"),
    "log.first_errors": _("first errors: {listed}"),
    "log.first.none": _("rank {rank}: none{silent}"),
    "log.first.waits": _(" (silent because it waits)"),
    "log.first.not_waiting": _(""),
    "log.first.silent": _("no error: {ranks}"),
    "log.first.error": _("{ranks}: {text}{where}{effect}"),
    "log.first.effect": _(" (follows from another's)"),
    "log.first.cause": _(""),
    "log.first.more": _("and {count} more kinds"),
    "log.at": _(" at {frame}"),
    "log.nowhere": _(""),
    "log.drift": _(
        "rank {rank} is {seconds:.1f} s behind the others in its log since “{text}” ({source})"
    ),
    "log.drift.always": _(
        "rank {rank} is {seconds:.1f} s behind the others in its log from the first line on: it"
        " began later, or its host's clock differs"
    ),
    "advice.log.gpu": _(
        "take the host out of the job and test the GPU: nvidia-smi -q -d ECC,ERROR; dmesg -T | grep"
        " -i xid; dcgmi diag -r 3"
    ),
    "advice.log.illegal": _("let the call fail where it is made: CUDA_LAUNCH_BLOCKING=1, one rank"),
    "advice.log.memory": _("see what the host's memory went to: free -g; dmesg -T | grep -i oom"),
    "advice.log.scheduler": _("ask the scheduler: sacct -j {job} -o State,Reason,Elapsed"),
    "advice.log.look": _("read the log of rank {rank} around its last line; live: py-spy dump"),
    "advice.log.all": _("bring the logs of all ranks together, and run with NCCL_DEBUG=INFO"),
    "advice.log.detail": _("let ranks compare their calls: TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    "advice.log.link": _(
        "measure rank {rank}'s links against others in pairs: sendrecv_perf (nccl-tests)"
    ),
    "advice.log.host": _("mend the host's limit or file system that the line names"),
}
