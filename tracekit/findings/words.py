"""Every word that tracekit's verdicts and reports say to people, in one catalogue.

The catalogue is English and ready for gettext: a translation is looked up by the template, before
values are filled in. JSON is always English, so a ``Words`` is its English text and remembers how
it was made; a report in another language makes it anew.
"""

from __future__ import annotations

import gettext
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tracekit.findings._dump_words import DUMP_WORDS
from tracekit.findings._log_words import LOG_WORDS
from tracekit.findings._mark import mark as _
from tracekit.findings._network_words import NETWORK_WORDS
from tracekit.findings._story_words import STORY_WORDS
from tracekit.findings._training_words import TRAINING_WORDS

__all__ = ["WORDS", "Words", "say", "translator"]


WORDS: Mapping[str, str] = {
    # Titles of findings
    "straggler.rank": _(
        "rank {rank} makes the others wait {ms:.1f} ms in every step ({percent:.0f} %): {cause}"
    ),
    "straggler.rank.unsure": _(
        "rank {rank} made the others wait {ms:.1f} ms a step ({percent:.0f} %), but {steps} steps"
        " are too few to be sure: {cause}"
    ),
    "straggler.rank.mean": _(
        "rank {rank} works {ratio:.1f} times as long as the ranks do on average: {cause}"
    ),
    "straggler.intermittent": _(
        "rank {rank} is late in {count} of {steps} steps, {each:.1f} ms each time"
        " ({percent:.0f} % of all time): {cause}"
    ),
    "straggler.unit": _(
        "{ranks}, which wait for each other in every layer, make the others wait {ms:.1f} ms a"
        " step ({percent:.0f} %), late in {count} of {steps} steps: {phase}"
    ),
    "straggler.stage": _(
        "pipeline {stages} of {of} ({ranks}) has {ms:.1f} ms more work in every step than any other"
        " ({percent:.0f} %), in {cause}"
    ),
    "straggler.stage.unsure": _(
        "pipeline {stages} of {of} ({ranks}) had {ms:.1f} ms more work a step than any other"
        " ({percent:.0f} %), but {steps} steps are too few to be sure: {cause}"
    ),
    "stages.one": _("stage {listed}"),
    "stages.many": _("stages {listed}"),
    "straggler.data_imbalance": _(
        "every rank's work varies by itself, forward and backward alike: {percent:.0f} % of the"
        " step is waiting for whoever got the most"
    ),
    "straggler.unknown_roles": _(
        "ranks communicate in several kinds of groups and their roles are not known:"
        " no rank is judged"
    ),
    "comm.share": _("{percent:.0f} % of the step is communication that nothing hides: {largest}"),
    "comm.share.explained": _(
        "{percent:.0f} % of the step is communication that nothing hides: others wait for {ranks}"
    ),
    "comm.share.crowded": _(
        "{percent:.0f} % of the step is communication that nothing hides; {ranks} ranks share"
        " {cores} cores, so they also wait for a core"
    ),
    "data.bound": _("{percent:.0f} % of the step is waiting for input"),
    "data.bound.utilization": _(
        "ranks compute {utilization:.0f} % of their time; most of the rest is waiting for input"
    ),
    "comm.share.utilization": _(
        "ranks compute {utilization:.0f} % of their time; most of the rest is communication:"
        " {largest}"
    ),
    "largest.wait": _("mostly waiting for late ranks"),
    "largest.queue": _("mostly queueing behind other collectives"),
    "largest.transfer": _("mostly moving data"),
    "clock.unaligned": _(
        "ranks of {count} clocks ({hosts}): their times are not comparable, no lateness is judged"
    ),
    "coverage.partial.ranks": _("no records of {ranks} of {world_size} ranks: {listed}"),
    "coverage.partial.files": _("{count} files could not be read, the first: {first}"),
    "coverage.partial.dropped": _("{count} spans were dropped: {reason}"),
    "coverage.partial.collectives": _("{count} collectives lack members and are not timed"),
    "coverage.partial.nothing": _("nothing was recorded"),
    "coverage.duplicate_rank": _("{count} processes claim rank {rank}; {kept} was analyzed"),
    "coverage.step_shift": _("rank {rank} counts its steps {shift:+d}; this was corrected"),
    "hang.missing_rank": _(
        "rank {rank} never came to {call}, in which {waiting} since {seconds:.0f} s: {doing}"
    ),
    "hang.busy_rank": _(
        "rank {rank} still works and has not come to {call}, in which {waiting} since"
        " {seconds:.0f} s: {doing}"
    ),
    "hang.stopped": _(
        "the process of rank {rank} is stopped; {waiting} for it in {call} since"
        " {seconds:.0f} s: {doing}"
    ),
    "hang.gil": _(
        "a thread of rank {rank} holds Python's interpreter lock; {waiting} for it in {call}"
        " since {seconds:.0f} s: {doing}"
    ),
    "hang.all_in": _(
        "all ranks are in {call} since {seconds:.0f} s and it does not end: the network, or a rank"
        " that left no record"
    ),
    "hang.mismatch": _(
        "ranks are in different collectives of one group: {waiting} in {call}, {others}"
    ),
    "hang.cycle": _("ranks wait for each other in a circle: {waiting} in {call}, {others}"),
    "hang.other": _("rank {rank} in {call}"),
    "crash.killed": _(
        "rank {rank} was killed by signal {signal} ({name}, says the {source}) in {inside}{victims}"
    ),
    "source.launcher": _("launcher"),
    "source.pidfd": _("kernel"),
    "source.stacks": _("stack that it left"),
    "crash.victims": _("; {ranks} ended because of it"),
    "crash.no_victims": _(""),
    "crash.alike": _("; {ranks} ended in the same way{victims}"),
    "crash.ended": _("all ranks were ended from outside by signal {signal} ({name})"),
    "crash.vanished": _(
        "rank {rank} ended in {inside} without a word, and nobody recorded how{victims}"
    ),
    "crash.exit": _("rank {rank} ended with exit code {code} in {inside}{victims}"),
    "crash.error": _("rank {rank} raised {error} in {inside}{victims}"),
    "crash.oom": _("rank {rank} ran out of memory in {inside}: {error}{victims}"),
    "inside": _("{name} of step {step}"),
    "call.send": _("send to rank {rank}"),
    "call.recv": _("recv from rank {rank}"),
    "inside.stepless": _("{name}"),
    "inside.at": _("{inside}, at {frame}"),
    "inside.after": _("step {step}, after {name}"),
    "inside.nothing": _("nothing recorded"),
    # Causes
    "cause.data": _("it waits {ms:.1f} ms longer for its input than its peers"),
    "cause.forward": _("its forward takes {ms:.1f} ms longer than its peers'"),
    "cause.backward": _("its backward takes {ms:.1f} ms longer than its peers'"),
    "cause.optimizer": _("its optimizer takes {ms:.1f} ms longer than its peers'"),
    "cause.checkpoint": _("it saves a checkpoint for {ms:.1f} ms longer than its peers"),
    "cause.eval": _("it evaluates for {ms:.1f} ms longer than its peers"),
    "cause.compile": _("it compiles for {ms:.1f} ms longer than its peers"),
    "cause.gc": _("its garbage collector stops it for {ms:.1f} ms longer than its peers'"),
    "cause.other": _("it spends {ms:.1f} ms more than its peers outside of all phases"),
    "cause.unknown": _("no single phase explains it"),
    "verdict.stage": _("stage: {cause}"),
    "phase.data": _("data"),
    "phase.forward": _("forward"),
    "phase.backward": _("backward"),
    "phase.optimizer": _("optimizer"),
    "phase.checkpoint": _("checkpoint"),
    "phase.eval": _("evaluation"),
    "phase.compile": _("compilation"),
    "phase.gc": _("gc"),
    "phase.other": _("between phases"),
    "phase.unknown": _("unknown"),
    "phase_name.data": _("its data wait"),
    "phase_name.forward": _("its forward"),
    "phase_name.backward": _("its backward"),
    "phase_name.optimizer": _("its optimizer"),
    "phase_name.checkpoint": _("its checkpoint"),
    "phase_name.eval": _("its evaluation"),
    "phase_name.compile": _("its compilation"),
    "phase_name.gc": _("its garbage collection"),
    "phase_name.other": _("none of the phases"),
    "phase_name.unknown": _("no single phase"),
    # Advice
    "advice.data": _(
        "compare rank {rank}'s loader and storage with another rank's:"
        " on {host}, py-spy dump --pid {pid}; then how far it reads ahead (num_workers and"
        " prefetch_factor, or num_parallel_calls and prefetch() of tf.data), the shard it reads"
    ),
    "advice.compute": _(
        "look for another load or a slow clock on {host}: top -b -n 1; nvidia-smi -q -d"
        " CLOCK,PERFORMANCE,TEMPERATURE"
    ),
    "advice.compute.input": _(
        "if the host is healthy, compare the sizes of rank {rank}'s batches with its peers'"
    ),
    "advice.code": _(
        "see what rank {rank} does there that its peers do not: on {host}, py-spy top --pid {pid}"
    ),
    "advice.checkpoint": _(
        "save in the background or on all ranks alike: torch.distributed.checkpoint.async_save"
    ),
    "advice.gc": _(
        "collect on all ranks in the same step: gc.freeze() after start-up, gc.disable(), and"
        " gc.collect() every few hundred steps"
    ),
    "advice.imbalance": _(
        "give ranks batches of equal work: bucket by length, or bound the tokens of a batch"
    ),
    "advice.stage": _(
        "give this stage fewer layers, or more of its work (embedding, head, input) to the others"
    ),
    "advice.stage.hosts": _(
        "if its layers are no more than the others', look for what its hosts have in common"
    ),
    "advice.more_steps": _("record more steps: some 50 after warm-up decide it"),
    "advice.roles": _(
        "tell tracekit the roles of ranks (dp, pp, tp) or create groups by DeviceMesh"
    ),
    "advice.wait": _("find the late ranks first: tracekit analyze {run} --format json, key ranks"),
    "advice.transfer": _(
        "measure the network by itself: all_reduce_perf -b 1M -e 1G -f 2 (nccl-tests), then compare"
    ),
    "advice.transfer.tcp": _(
        "gloo sends by TCP: GLOO_SOCKET_IFNAME must name the fast interface; measure it with iperf3"
    ),
    "advice.queue": _("send less often: larger buckets (bucket_cap_mb) or gradient accumulation"),
    "advice.crowded": _(
        "run at most {cores} ranks here, or count on it: the network cannot be judged this way"
    ),
    "advice.loader": _(
        "prepare batches ahead: num_workers and prefetch_factor, or num_parallel_calls and"
        " prefetch() of tf.data; faster storage"
    ),
    "advice.clock": _(
        "compare ranks of one host only, or run the ranks where clocks can be read against each"
        " other"
    ),
    "advice.collect": _("fetch the journals that lie on other hosts: tracekit collect {run}"),
    "advice.files": _("see which files: tracekit analyze {run} --format json, key coverage"),
    "advice.duplicate": _("start ranks with distinct numbers: see RANK in the launcher's command"),
    "advice.stack": _("see where it is now: on {host}, py-spy dump --pid {pid}"),
    "advice.code_there": _("see why it never went on from {frame}"),
    "advice.again": _("let the next run hang for some seconds, so that its stacks are taken"),
    "advice.continue": _("let it go on or end it: on {host}, kill -CONT {pid} or kill -KILL {pid}"),
    "advice.gil": _(
        "find the C call that holds the lock: on {host}, py-spy dump --native --pid {pid}"
    ),
    "advice.disk": _(
        "it waits in the kernel ({wchan}): on {host}, cat /proc/{pid}/stack; check the file system"
    ),
    "advice.branch": _(
        "look for a collective that only some ranks call: a condition on rank, data or loss"
    ),
    "advice.network": _("check the links between the hosts, then run it with NCCL_DEBUG=INFO"),
    "advice.killed": _(
        "ask who killed it: on {host}, journalctl -k | grep -i -e oom -e killed; dmesg -T | tail"
    ),
    "advice.aborted": _(
        "this signal is a process's own failure: read the rank's last lines on stderr, and let it"
        " leave a core file (ulimit -c unlimited)"
    ),
    "advice.vanished": _(
        "ask the launcher and the kernel: the launcher's log, and on {host}, dmesg -T | tail"
    ),
    "advice.error": _("the other ranks' errors follow from this one: mend it first"),
    "advice.ended": _(
        "look for the scheduler's reason: time limit, preemption, or a user's cancel"
    ),
    "advice.oom": _("reduce the batch or save memory: tracekit plan memory"),
    "advice.series": _("see the steps concerned: tracekit analyze {run} --steps {first}:{last}"),
    # Answers to the four questions (the fourth compares runs)
    "lagging.nobody": _("nobody: no rank makes the others wait step after step"),
    "lagging.rank": _("rank {rank}, in {cause}: {ms:.1f} ms of {step:.1f} ms a step"),
    "lagging.stage": _("{stages} of the pipeline, in {cause}: {ms:.1f} ms of {step:.1f} ms a step"),
    "lagging.sometimes": _("rank {rank} now and then, in {cause}: {ms:.1f} ms in a mean step"),
    "lagging.cannot_tell": _("cannot tell: {reason}"),
    "lagging.hang": _("rank {rank}, which never came to {call}"),
    "lagging.crash": _("rank {rank}, which ended"),
    "blocked.nothing": _("nothing: ranks hardly wait for communication"),
    "blocked.share": _(
        "{op} in group {group}: {percent:.0f} % of the step is exposed communication,"
        " {wait:.0f} % waiting for others"
    ),
    "blocked.hang": _("{call}: {waiting} in it"),
    "idle.share": _(
        "ranks compute {compute:.0f} % of the step and communicate {communication:.0f} %;"
        " rank {rank} waits most, {ms:.1f} ms"
    ),
    "idle.alone": _("ranks compute {compute:.0f} % of the step"),
    "reason.clocks": _("the ranks' clocks are not aligned"),
    "reason.roles": _("the ranks' roles are not known"),
    "reason.steps": _("no step was completed by all ranks"),
    # The text report
    "symptom.hang": _("HANG"),
    "symptom.oom": _("OUT OF MEMORY"),
    "symptom.crash": _("CRASH"),
    "symptom.abnormal": _("ABNORMAL"),
    "symptom.slow": _("SLOW"),
    "symptom.healthy": _("HEALTHY"),
    "phase.startup": _("start-up"),
    "phase.training": _("training"),
    "phase.teardown": _("teardown"),
    "report.phase": _(" in {phase}"),
    "report.healthy": _("No rank lags, nothing stands out."),
    "report.run": _("run {id}"),
    "report.ranks": _("{ranks} ranks on {hosts} hosts"),
    "report.ranks.one": _("{ranks} ranks on one host"),
    "report.attempt": _("attempt {attempt}, the last of {attempts}"),
    "report.steps": _("{used} of {steps} steps used, {warm_up} were warm-up"),
    "report.median": _("step {median:.1f} ms, p95 {p95:.1f}, max {max:.1f}"),
    "report.shares": _("Where a step goes"),
    "report.hidden": _("{percent:.1f} more is hidden by compute"),
    "report.utilization": _("utilisation {percent:.0f} %"),
    "report.rank_table": _("Ranks, ms in a mean step"),
    "report.more_ranks": _("{count} more ranks, none of them named or late by more"),
    "report.collectives": _("Collectives, ms of a mean rank in a mean step"),
    "report.lost": _("{seconds:.1f} s lost"),
    "report.next": _("next"),
    "report.overhead.accounted": _(
        "recording took {percent:.2f} % of the step by account: {us:.0f} µs for {spans:.0f} spans;"
        " adapters' hooks, not counted, may take several times that"
    ),
    "report.overhead.unknown": _("{spans:.0f} spans a step; what one costs was not recorded"),
    "report.overhead.measured": _("measured slowdown {percent:.2f} % ({low:.2f} to {high:.2f} %)"),
    "report.overhead.not_shown": _(
        "measured slowdown not shown: between {low:.1f} and {high:.1f} %"
    ),
    "report.coverage.whole": _("{files} files, no span dropped, {open} open at the end"),
    "report.coverage.dropped": _("{files} files, {dropped} spans dropped, {open} open at the end"),
    "report.coverage.skipped": _("{count} skipped"),
    "report.export": _("{spans} spans of {steps} steps went to {endpoint}"),
    "report.export.refused": _("it refused {count}"),
    "report.export.left": _(
        "{left_spans} spans of {left_steps} chosen steps did not: tracekit export RUN --to otlp"
    ),
    "report.export.message": _("the last answer: {message}"),
    "column.rank": _("rank"),
    "column.host": _("host"),
    "column.own": _("own work"),
    "column.ratio": _("of mean"),
    "column.late": _("late by"),
    "column.last": _("last"),
    "column.imposed": _("imposed"),
    "column.waits": _("waits"),
    "column.verdict": _("verdict"),
    "column.op": _("operation"),
    "column.group": _("group"),
    "column.size": _("ranks"),
    "column.count": _("count"),
    "column.bytes": _("each"),
    "column.wait": _("wait"),
    "column.queue": _("queue"),
    "column.transfer": _("transfer"),
    "class.compute": _("compute"),
    "class.exposed_communication": _("communication"),
    "class.data": _("data"),
    "class.checkpoint": _("checkpoint"),
    "class.eval": _("evaluation"),
    "class.compile": _("compilation"),
    "class.gc": _("garbage collection"),
    "class.other": _("other"),
    "class.wait": _("wait"),
    "class.queue": _("queue"),
    "class.transfer": _("transfer"),
    "certainty.proven": _("proven"),
    "certainty.likely": _("likely"),
    "certainty.cannot_tell": _("cannot tell"),
    "severity.info": _("info"),
    "severity.warning": _("warning"),
    "severity.critical": _("critical"),
    "waiting.one": _("{ranks} waits"),
    "waiting.many": _("{ranks} wait"),
    "ranks.one": _("rank {listed}"),
    "ranks.many": _("ranks {listed}"),
    **LOG_WORDS,
    **DUMP_WORDS,
    **TRAINING_WORDS,
    **NETWORK_WORDS,
    **STORY_WORDS,
}
"""Every template by its key."""


class Words(str):
    """An English text that remembers its template and values."""

    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, values: Mapping[str, Any]) -> Words:
        """Fill the values into the template."""
        made = super().__new__(cls, template.format(**values))
        made.template, made.values = template, values
        return made

    def __getnewargs__(self) -> tuple[str, Mapping[str, Any]]:  # type: ignore[override]
        """What copies are made of."""
        return self.template, self.values


def say(key: str, **values: Any) -> Words:
    """The words of the catalogue under a key, with values filled in."""
    return Words(WORDS[key], values)


def translator(language: str | None = None) -> Callable[[str], str]:
    """What turns words into a language; English where there is no translation."""
    catalogue = gettext.translation(
        "tracekit",
        Path(__file__).parent / "locale",
        [language] if language else ["en"],
        fallback=True,
    )

    def translate(text: str) -> str:
        if not isinstance(text, Words):
            return text
        values = {
            name: translate(value) if isinstance(value, Words) else value
            for name, value in text.values.items()
        }
        return catalogue.gettext(text.template).format(**values)

    return translate
