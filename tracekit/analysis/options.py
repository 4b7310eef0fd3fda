"""Every threshold of the analysis. docs/numbers.md has the same table for people."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """What may be chosen; shares are of the median step unless said otherwise."""

    first_step: int | None = None
    """The first step to look at; None: from the beginning."""
    last_step: int | None = None
    """The last step to look at; None: to the end."""

    warm_up_at_most: int = 10
    """Steps that warm-up can take."""
    warm_up_alike: int = 3
    """Steps in a row that must be alike to end it."""
    warm_up_times_median: float = 2.0
    """How long such a step may take, in median steps of the time after."""
    set_aside_at_most: float = 0.5
    """Steps with a checkpoint or evaluation leave the statistics unless more of them have one."""

    straggler_warning: float = 0.10
    """Imposed wait that is worth a warning."""
    straggler_critical: float = 0.20
    """Imposed wait that is critical."""
    persistent_share: float = 0.5
    """Steps in which half of it must be imposed: what comes less often is intermittent."""
    critical_steps: int = 20
    """Steps that a critical verdict needs."""
    block_steps: int = 5
    """Steps in a block of the sign test."""
    p_value: float = 0.01
    """Chance, over all ranks, that the sign test may leave."""
    mean_rule: float = 1.3
    """Mean own work, in means over ranks, from which the mean rule speaks."""
    cause_share: float = 0.8
    """Part of the excess own work that one phase must explain to be called the cause."""
    cause_quantile: float = 0.25
    """Quantile over the late steps that counts there: an excess is in three of four of them."""
    consistent_share: float = 0.8
    """Steps in which a rank must be the culprit where there are too few for the sign test."""

    spike: float = 0.20
    """Imposed wait of one step that counts as late."""
    spikes_at_least: int = 3
    """Late steps that make a rank intermittently late."""
    intermittent_warning: float = 0.05
    """Mean imposed wait from which intermittent lateness is worth a warning."""

    imbalance_variation: float = 0.10
    """Variation of every rank's own work, of its median, that speaks for uneven data."""
    imbalance_correlation: float = 0.6
    """Correlation of forward and backward within ranks that it needs beside that."""
    imbalance_wait: float = 0.10
    """Exposed wait that makes uneven data matter."""

    communication_warning: float = 0.30
    """Share of exposed communication that is worth a warning."""
    communication_critical: float = 0.45
    """Share of exposed communication that is critical."""
    data_warning: float = 0.20
    """Share of data wait that is worth a warning."""
    utilization_warning: float = 0.60
    """Utilisation below which the largest other share is worth a warning."""
    shares_steps: int = 20
    """Steps that a finding about shares needs."""

    overhead_interval: float = 0.02
    """Width of the interval of the measured overhead beyond which it is not shown."""

    stall_times_median: float = 5.0
    """How long a collective must be open to be called hung, in median steps."""
    stall_s: float = 10.0
    """... and in seconds, while the job runs and nobody took stacks."""
    stall_ended_s: float = 1.0
    """... and in seconds, once the job is over or stacks were taken."""
    heartbeat_stale_s: float = 2.5
    """Silence of a rank's heartbeat, against that of the others, that shows a held interpreter."""
    progress_s: float = 60.0
    """For how long a rank's own counter may stand still before the rank is not busy any more."""
    deaths_together_s: float = 2.0
    """Ranks that end within this time of the first may have caused one another's end."""

    looks_apart_s: float = 5.0
    """How far apart two looks at a job by RAS must be to be compared."""
    looks_hung_s: float = 30.0
    """... and how far for what did not move between them to be a hang."""

    save_times_longest: float = 3.0
    """How long a save must be open to be called hung, in times of the longest one before."""

    loss_scale_drops: int = 8
    """Falls of the loss scale in a row that are a collapse and no search for the right one."""
    loss_scale_tiny: float = 1.0
    """Scale to which it must fall for that."""
    skipped_share: float = 0.05
    """Updates left out, of all, from which that is worth a warning."""
    equal_losses_steps: int = 10
    """Steps that must have equal losses on all ranks to say that they read the same."""
    strangers_steps: int = 20
    """Steps without any communication that show ranks training apart."""
    sum_ratio_error: float = 0.05
    """How far from the number of replicas the ratio of two records of a value may be."""

    spans_per_window: int = 3_000_000
    """Spans that are looked at together; more of them need more memory, not more time."""
    spans_for_totals: int = 250_000
    """Communications from which the totals of a large run are taken, spread evenly over it."""
