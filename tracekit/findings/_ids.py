"""The catalogue of findings. An id, once published, stays; docs/findings.md says more of each."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["IDS"]

IDS = MappingProxyType(
    {
        "checkpoint.skew": "ranks save checkpoints that differ",
        "clock.unaligned": "ranks of several clocks, whose offset is not known",
        "comm.bandwidth": "collectives move fewer bytes a second than they could",
        "comm.error": "communication failed: a link, an address, a port or a setting",
        "comm.extra_sync": "gradients are synchronised more often than once a step",
        "comm.gdr_off": "the network reads GPU memory through the host",
        "comm.no_overlap": "communication waits for the end of the computation",
        "comm.share": "communication that nothing hides takes a large share of the step",
        "comm.slow_nic": "one network card is slower than the others",
        "comm.socket_fallback": "communication uses sockets where faster hardware exists",
        "config.batch": "batch sizes or accumulation do not fit together",
        "config.device": "two ranks use one device",
        "config.env": "environment variables differ between ranks or have no effect",
        "config.keras": "the version of Keras cannot do what it is asked for",
        "config.lr": "the learning rate does not fit the number of ranks",
        "config.reduction": "values of replicas are not put together, or wrongly",
        "config.seed": "ranks draw equal random numbers, or start from different parameters",
        "config.strategy": "fewer workers, replicas or devices train together than were started",
        "config.tf_config": "TF_CONFIG contradicts the cluster",
        "config.timeout": "a timeout was changed and the same collective hung again",
        "config.versions": "ranks run different versions",
        "coverage.duplicate_rank": "two processes claim one rank",
        "coverage.partial": "records of ranks or files are missing",
        "coverage.step_shift": "ranks number the same step differently",
        "crash.error": "a rank raised an error",
        "crash.killed": "a rank was killed by a signal",
        "crash.oom": "a rank ran out of memory",
        "crash.vanished": "a rank ended and nobody recorded how",
        "data.bound": "ranks wait for input for a large share of the step",
        "data.same_shard": "ranks read the same samples",
        "data.shuffle": "the data are shuffled through a small buffer",
        "data.uneven": "ranks get unequal shares of the data",
        "gpu.busy_waiting": "a device is busy waiting, not computing",
        "hang.busy_rank": "a rank did not arrive because it still works on something else",
        "hang.cycle": "ranks wait for each other in a circle",
        "hang.gil": "a rank did not arrive: one of its threads holds the interpreter",
        "hang.mismatch": "ranks are in different collectives",
        "hang.missing_rank": "a rank did not arrive at a collective that others are in",
        "hang.stopped": "a rank did not arrive: its process is stopped",
        "host.limit": "a limit or a service of a host stops communication",
        "memory.pressure": "memory is nearly used up",
        "numeric.loss_scale": "the loss scale collapses, or differs between ranks",
        "numeric.nonfinite": "values are infinite or not a number",
        "numeric.saturated": "values stand at the limit of their type",
        "numeric.spike": "a value jumps",
        "numeric.zero_grad": "gradients are exactly zero for many steps",
        "resource.fd_leak": "open files or sockets grow",
        "scaling.efficiency": "more ranks bring too little",
        "straggler.data_imbalance": "every rank's work varies, and another one is last each time",
        "straggler.intermittent": "one rank is late now and then, for the same reason",
        "straggler.rank": "one rank makes the others wait, step after step",
        "straggler.stage": "one pipeline stage has more work than the others",
    }
)
"""Every id a finding may have, and what it means."""
