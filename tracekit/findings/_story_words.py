"""Words with which several sources are told as one."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.findings._mark import mark as _

__all__ = ["STORY_WORDS"]


STORY_WORDS: Mapping[str, str] = {
    "story.journal": _("its record"),
    "story.kernel": _("the kernel's log"),
    "story.scheduler": _("the scheduler"),
    "story.logs": _("the logs"),
    "story.dumps": _("the dumps"),
    "story.nccl": _("NCCL's log"),
    "story.and": _("{one} and {other}"),
    "story.agree": _("{told}; seen in {sources}, too"),
    "story.names": _("{source} says: {title}"),
    "story.against": _("{told}. Against it speaks: {but}"),
}
"""Every template by its key."""
