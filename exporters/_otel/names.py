"""The names of OpenTelemetry attributes, in one place: what a column is called outside.

OpenTelemetry's own conventions come first (``service.*``, ``host.*``, ``process.*``), then the
names that training tools already use (``dl.*``, ``slurm.*``, as NVIDIA's nemo-lens writes them),
then ``tracekit.*``.
"""

from __future__ import annotations

__all__ = [
    "ATTEMPT",
    "CLASS",
    "CLOCK_DOMAIN",
    "CLOCK_ERROR",
    "CLOCK_OFFSET",
    "FOLDED",
    "FOLDED_COUNT",
    "FOLDED_LONGEST",
    "FOLDED_TOTAL",
    "LAST_RANK",
    "LATENESS",
    "METRICS",
    "OPEN",
    "QUEUE",
    "RANK",
    "RANKS",
    "ROLES",
    "RUN_ID",
    "SAMPLE_REASON",
    "SCOPE",
    "SETTINGS",
    "SHARED",
    "SKEW",
    "STEP",
    "STRAGGLER",
    "STRAGGLERS",
    "STRAGGLER_CAUSE",
    "TEXT",
    "TIME_SHIFT",
    "TRANSFER",
    "VALUE",
    "VARYING",
    "WAIT",
    "WORLD_SIZE",
]

SCOPE = "tracekit"

STEP = "dl.iteration"
SHARED = {
    "kind": "tracekit.kind",
    "step": STEP,
    "micro_step": "dl.microbatch_id",
    "lane": "tracekit.lane",
    "clock": "tracekit.clock",
    "device": "tracekit.device",
    "collective_op": "tracekit.collective.op",
    "collective_group": "tracekit.collective.group",
    "collective_bytes": "tracekit.collective.bytes",
    "collective_dtype": "tracekit.collective.dtype",
    "group_size": "tracekit.collective.size",
    "peer_rank": "tracekit.peer_rank",
}
"""Columns that many spans of a step have in common."""
VARYING = {"collective_seq": "tracekit.collective.seq", "launch_ns": "tracekit.launch_ns"}
"""Columns that hardly two spans of a rank have in common."""

OPEN = "tracekit.open"
WAIT = "tracekit.wait_ns"
QUEUE = "tracekit.queue_ns"
TRANSFER = "tracekit.transfer_ns"
LATENESS = "tracekit.lateness_ns"
LAST_RANK = "tracekit.last_rank"
SAMPLE_REASON = "tracekit.sample.reason"
TEXT = "tracekit.text"
VALUE = "tracekit.value"
RANKS = "tracekit.step.ranks"
TIME_SHIFT = "tracekit.time_shift_ns"
FOLDED = "tracekit.folded.spans"
FOLDED_COUNT = "tracekit.folded.count"
FOLDED_TOTAL = "tracekit.folded.total_ns"
FOLDED_LONGEST = "tracekit.folded.longest_ns"
SKEW = "tracekit.step.skew_ns"
STRAGGLER = "tracekit.straggler"
STRAGGLERS = "tracekit.step.stragglers"
STRAGGLER_CAUSE = "tracekit.straggler_cause"

RUN_ID = "tracekit.run.id"
ATTEMPT = "tracekit.attempt"
RANK = "dl.rank"
WORLD_SIZE = "dl.world_size"
CLOCK_OFFSET = "tracekit.clock.offset_ns"
CLOCK_ERROR = "tracekit.clock.error_ns"
CLOCK_DOMAIN = "tracekit.clock.domain"
ROLES = {
    "dp": "dl.data_parallel",
    "tp": "dl.tensor_parallel",
    "pp": "dl.pipeline_parallel",
    "ep": "dl.expert_parallel",
    "cp": "dl.context_parallel",
}
"""Parallel dimensions; ``.rank`` and ``.size`` follow."""
SETTINGS = {
    "SLURM_JOB_ID": "slurm.job.id",
    "SLURM_JOB_NAME": "slurm.job.name",
    "SLURM_JOB_PARTITION": "slurm.partition",
    "SLURM_JOB_NODELIST": "slurm.nodelist",
}
"""Environment variables that become attributes of the resource."""

CLASS = "tracekit.class"
"""The class of a share, an attribute of its points."""
METRICS = {
    "tracekit.step.duration": "how long steps took",
    "tracekit.steps": "steps that are over",
    "tracekit.samples": "samples that were trained on",
    "tracekit.step.share": "what part of the steps' time a class took",
    "tracekit.wait": "how long the rank waited for others, per step",
    "tracekit.loss": "the last loss that is a number",
    "tracekit.loss.nonfinite": "losses that were infinite or no number",
    "tracekit.memory": "memory in use",
}
