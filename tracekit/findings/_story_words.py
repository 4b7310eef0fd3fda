"""Words with which several sources are told as one."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.findings._mark import mark as _

__all__ = ["STORY_WORDS"]


STORY_WORDS: Mapping[str, str] = {
    "log.xid.rank": _("the GPU of {ranks} failed, says its driver: Xid {xid}, {means}{victims}"),
    "log.xid.host": _(
        "a GPU of host {host} failed, says its driver: Xid {xid}, {means}; cannot tell whose it was"
        " of {ranks}, which ran there{victims}"
    ),
    "log.xid.its_host": _("its host"),
    "xid.13": _("a kernel raised an exception"),
    "xid.31": _("a kernel accessed memory that is not its own"),
    "xid.48": _("its memory has an error that cannot be corrected"),
    "xid.61": _("its microcontroller stopped"),
    "xid.62": _("its microcontroller stopped"),
    "xid.64": _("a bad row of its memory cannot be replaced"),
    "xid.69": _("a kernel raised an exception"),
    "xid.74": _("an error of NVLink"),
    "xid.79": _("it has fallen off the bus"),
    "xid.92": _("its memory has many errors"),
    "xid.94": _("its memory has an error that one program cannot survive"),
    "xid.95": _("its memory has an error that no program survives"),
    "xid.119": _("its system processor does not answer"),
    "xid.120": _("its system processor failed"),
    "xid.154": _("it has to be reset"),
    "report.seen": _("seen"),
    "advice.own": _("mend it where its traceback ends"),
    "story.journal": _("its record"),
    "story.kernel": _("the kernel's log"),
    "story.scheduler": _("the scheduler"),
    "story.logs": _("the logs"),
    "story.dumps": _("the dumps"),
    "story.nccl": _("NCCL's log"),
    "story.uneven": _("{told}. It had left the epoch: {why}"),
    "story.and": _("{one} and {other}"),
    "story.agree": _("{told}; seen in {sources}, too"),
    "story.names": _("{source} says: {title}"),
    "story.against": _("{told}. Against it speaks: {but}"),
    "doing.in": _("it is in {name} since {seconds:.0f} s"),
    "doing.frame": _("it is in {name} since {seconds:.0f} s, at {frame}"),
    "doing.last": _("its last span, {name}, ended {seconds:.0f} s ago"),
    "doing.last_frame": _("its last span, {name}, ended {seconds:.0f} s ago; it is at {frame}"),
    "doing.nothing": _("it left no record of what it does"),
    "doing.usual": _("{doing}, {times:.0f} times as long as others took ({seconds:.0f} s)"),
    "doing.rises": _("{doing}; it gets ahead: {name} rose to {value:,.0f} {seconds:.0f} s ago"),
    "doing.fewer": _("{doing}; its {name} is {own:,g} where that of the others is {others:,g}"),
    "doing.stands": _("{doing}; {name} stands at {value:,.0f} since {seconds:.0f} s"),
    "oom.neighbours": _(
        "{told}. On the same GPU other processes ({count}{named}) held {mib:,.0f} MiB: it may have"
        " run out because of them"
    ),
    "oom.ranks": _(", {ranks} among them"),
    "oom.nobody": _(""),
    "advice.oom.neighbours": _(
        "see who is on that GPU: nvidia-smi; each rank calls torch.cuda.set_device(LOCAL_RANK)"
        " before anything else, and torch.load(…, map_location=…)"
    ),
}
"""Every template by its key."""
