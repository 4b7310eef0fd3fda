"""Words about what dumps of Flight Recorder show."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.findings._mark import mark as _

__all__ = ["DUMP_WORDS"]


DUMP_WORDS: Mapping[str, str] = {
    "hang.dump.absent": _(
        "{ranks} never came to {call}, in which {waiting} since {since}: the last call there is"
        " {last}"
    ),
    "hang.dump.absent_behind": _(
        "{ranks} never came to {call}, in which {waiting} since {since}, and its device does not"
        " get ahead: {stuck}, which {ended} ended, is still open there"
    ),
    "hang.dump.behind": _(
        "the device of {ranks} does not get ahead: {stuck}, which {ended} ended, is still open"
        " there since {since}"
    ),
    "hang.dump.messages": _(
        "{ranks} is in no call, and {waiting} since {since} for messages with it"
    ),
    "hang.dump.no_dump": _(
        "no dump of {ranks}: cannot tell whether it came to {call}, in which {waiting} since"
        " {since}; all others came"
    ),
    "hang.dump.no_word": _(
        "the dumps of {ranks} do not tell whether it came to {call}, in which {waiting} since"
        " {since}; all others came"
    ),
    "coverage.partial.dumps": _(
        "no dump of {ranks}: cannot tell what it did; the dumps that are there hold no open call"
        " that waits for anybody"
    ),
    "hang.dump.all_in": _(
        "all ranks are in {call} since {since}: the dumps alone cannot tell whether it will end"
    ),
    "hang.dump.mismatch": _("ranks disagree about call {seq} of group {group}: {parts}"),
    "hang.call.sized": _("{op} of {bytes:,} bytes ({dtype})"),
    "hang.dump.alone": _(
        "rank {rank} is alone in {call} since {since}: it made one call more than {ranks}, which"
        " are in none, or these never came. The call that is too many may be an earlier one"
    ),
    "hang.dump.alone_parted": _(
        "rank {rank} is alone in {call} since {since}: it made one call more than {ranks}, which"
        " are in none, or these never came. Their code parted at call {seq} at the latest, which"
        " rank {rank} made at {own} and the others at {others}"
    ),
    "hang.dump.exchange": _("what ranks send in {call} is not what others expect: {parts}"),
    "hang.dump.pair": _(
        "rank {sender} sends {sent:,} numbers to rank {receiver}, which expects {received:,}"
    ),
    "hang.dump.sums": _("{sent:,} numbers are sent and {received:,} expected in all"),
    "hang.dump.nothing_sent": _("{ranks} send nothing"),
    "hang.dump.nothing_received": _("{ranks} expect nothing"),
    "hang.dump.part": _("{ranks} in {what}"),
    "hang.dump.cycle": _("ranks wait for each other in a circle: {parts}"),
    "hang.dump.elsewhere": _(
        "{ranks} never came where others wait ({parts}), and the dumps do not tell for whom it"
        " waits itself: cannot tell whose fault it is"
    ),
    "hang.dump.number": _("number {seq}"),
    "hang.dump.none": _("none"),
    "advice.exchange": _(
        "compare the sizes and splits that ranks give: what one sends to another must be what that"
        " one expects; look at what decides them, as a shard or a router of its own on each rank"
    ),
    "advice.dump.twice": _(
        "dump once more and analyze both together: what has not moved by then is proven"
    ),
    "advice.dump.where": _(
        "see where rank {rank} is: on {host}, py-spy dump --pid PID; its own last lines on stderr"
    ),
    "advice.dump.device": _(
        "ask the device of rank {rank}: on {host}, dmesg -T | grep -i xid;"
        " nvidia-smi -q -d ECC,PERFORMANCE"
    ),
    "advice.dump.fetch": _(
        "fetch the dump of {ranks} from its own host (TORCH_FR_DUMP_TEMP_FILE), and its stderr:"
        " a rank that died wrote none"
    ),
}
"""Every template by its key."""
