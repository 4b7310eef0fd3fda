"""Words about what a training is made of: its cluster, replicas, values, checkpoints and input."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.findings._mark import mark as _

__all__ = ["TRAINING_WORDS"]


TRAINING_WORDS: Mapping[str, str] = {
    # The cluster
    "config.tf_config.invalid": _("TF_CONFIG of {ranks} cannot be used: {error}"),
    "cluster.index": _("it says {job} {index}, and the cluster has {count} of these"),
    "config.tf_config.duplicate": _("{ranks} were all told to be {job} {index}{absent}"),
    "config.tf_config.twice": _("{count} processes came as {job} {index}{absent}"),
    "config.tf_config.restarted": _(
        "{count} processes came as {job} {index}: it was restarted, or two have its index{absent}"
    ),
    "cluster.absent": _("; nobody came as {listed}"),
    "cluster.none_absent": _(""),
    "config.tf_config.loopback": _(
        "the workers run on several hosts ({hosts}), and TF_CONFIG of {ranks} has {address} for"
        " {task}: from another host this leads nowhere"
    ),
    "config.tf_config.different": _(
        "TF_CONFIG of {ranks} has another cluster than that of the other workers: {how}"
    ),
    "config.tf_config.different.undecided": _(
        "{ranks} have different clusters in TF_CONFIG, and nothing tells which is right: {how}"
    ),
    "cluster.sizes": _("not as many tasks"),
    "cluster.addresses": _("other addresses"),
    "config.tf_config.absent": _(
        "{world_size} processes were started together, but none has a TF_CONFIG: each trains alone"
    ),
    "config.tf_config.absent.some": _(
        "{ranks} of {world_size} have no TF_CONFIG and train alone; the others have one"
    ),
    # Replicas
    "config.strategy.alone": _(
        "TF_CONFIG of {ranks} names {named} workers, but {name} trains with {workers}: not all"
        " share one model"
    ),
    "config.strategy.strangers": _(
        "{count} ranks train the same model for {steps} steps and never communicate: each trains"
        " its own"
    ),
    "config.strategy.each_alone": _(
        "{count} processes of this job each believe to be its only rank: each trains alone"
    ),
    "config.strategy.devices": _(
        "{name} trains on {used} of the {visible} accelerators that {host} shows to {ranks}"
    ),
    "config.strategy.no_devices": _(
        "{name} trains on the CPU of {host}, though {ranks} can see {visible} accelerators"
    ),
    "config.strategy.parts": _(
        "rank {rank} divided its {kind} into {count} devices, and {name} trains on {used} of them"
    ),
    "config.strategy.unequal": _(
        "{ranks} have fewer replicas than other workers, which have {most}"
    ),
    "config.keras": _("fit of {keras} cannot train under {name}"),
    "config.seed.parameters": _(
        "{ranks} began with different parameters, and nothing was seen that makes them equal"
    ),
    "config.seed.wrapped": _(
        "{ranks} had different parameters when tracing began; wrapping the model makes them equal"
    ),
    "config.keras.error": _(
        "{ranks} failed as fit of Keras 3 does under several workers: it cannot take PerReplica"
    ),
    # Values of replicas
    "config.reduction.misused": _(
        "rank {rank} used values of several replicas (PerReplica) as if they were one"
    ),
    "config.reduction.never": _(
        "{value} comes from {replicas} replicas, and nobody was seen to put them together: what is"
        " told of it may be one replica's"
    ),
    "config.reduction.summed": _(
        "{value} is a mean on each replica and is summed over {replicas}: {replicas} times too"
        " large"
    ),
    "config.reduction.summed.perhaps": _(
        "{value} is summed over {replicas} replicas: right if each divides by the global batch,"
        " {replicas} times too large if each takes its mean"
    ),
    # Numbers
    "numeric.nonfinite.first": _("{ranks} had {what} first, in step {step}{victims}"),
    "numeric.loss": _("a loss that is not finite"),
    "numeric.gradient_nonfinite": _("gradients that are not finite, before they were reduced,"),
    "numeric.victims": _("; {ranks} had it after that"),
    "numeric.no_victims": _(""),
    "numeric.nonfinite.all": _(
        "the values of {ranks} stopped being finite in the same step, {step}: no rank was first"
    ),
    "numeric.nonfinite.reduced": _(
        "values stopped being finite in step {step}; only values put together over all ranks were"
        " recorded, so the rank it began on is unknown"
    ),
    "numeric.saturated": _(
        "gradients of {ranks} have values exactly at the limit of their type, in {steps} steps:"
        " something clips them there"
    ),
    "numeric.loss_scale.collapse": _(
        "the loss scale of {ranks} fell {drops} times in a row, from {highest:g} to {lowest:g}:"
        " no scale keeps the gradients finite"
    ),
    "numeric.loss_scale.skips": _("{ranks} left out {count} of {steps} updates"),
    "numeric.loss_scale.differs": _("ranks scale the loss by different factors from step {step}"),
    # Checkpoints
    "checkpoint.skew": _(
        "{ranks} saved another {what} than the others in save {count}: {listed}, not {usual}"
    ),
    "checkpoint.undecided": _(
        "{ranks} saved different {what} in save {count}, and nothing tells which is right: {listed}"
    ),
    "checkpoint.checksum": _("set of variables (names, shapes, types)"),
    "checkpoint.variables": _("number of variables"),
    "checkpoint.step": _("step"),
    "checkpoint.save_counter": _("save counter"),
    "call.save": _("{name}"),
    "hang.save.missing": _(
        "{ranks} never entered {name}, in which {waiting} since {seconds:.0f} s: {doing}"
    ),
    "hang.save.busy": _(
        "{ranks} still saves in {name} since {seconds:.0f} s, and {others} stand still: {doing}"
    ),
    "hang.save.unsure": _(
        "{others} in {name} since {seconds:.0f} s, and {ranks} not: either these should have come,"
        " or the save is slow; {doing}"
    ),
    # Input
    "data.uneven.counted": _(
        "{ranks} had fewer batches than the others in epoch {epoch}: {least}, not {most}"
    ),
    "data.uneven.planned": _(
        "{ranks} will have fewer batches in an epoch than the others: {least}, not {most}"
    ),
    "data.uneven.files": _(
        "{name} is dealt out by files and has {files} for {workers} workers: some get nothing"
    ),
    "data.same_shard": _(
        "{ranks} have the same loss to the last bit in all of {steps} steps: they read the same"
        " samples"
    ),
    "data.shuffle": _(
        "{name} is shuffled through {buffer} of {size} elements: matters only if it is in order"
    ),
    # The text report
    "report.setup.strategy": _("trained by {name}"),
    "report.setup.replicas": _("{replicas} replicas on {workers} workers"),
    "report.setup.alone": _("each worker a replica by itself"),
    "report.setup.communication": _("collectives by {by}"),
    "report.setup.host": _("seen on the host"),
    "report.setup.device": _("seen on the device"),
    # Advice
    "advice.transfer.grpc": _(
        "on CPUs TensorFlow sends each collective by gRPC: fewer and larger ones"
        " (tf.distribute.experimental.CommunicationOptions, bytes_per_pack); measure the network"
        " with iperf3"
    ),
    "advice.tf_config": _(
        'set it for each process before TensorFlow is imported: TF_CONFIG=\'{{"cluster":'
        ' {{"worker": ["host0:2222", "host1:2222"]}}, "task": {{"type": "worker", "index": 0}}}}\''
    ),
    "advice.tf_config.index": _('give each process its own "task": {{"index": ...}} in TF_CONFIG'),
    "advice.tf_config.address": _(
        "name the hosts in TF_CONFIG's cluster as the other hosts know them, with a free port"
    ),
    "advice.tf_config.same": _('give all processes the same "cluster" in TF_CONFIG'),
    "advice.strategy.workers": _(
        "make tf.distribute.MultiWorkerMirroredStrategy() first of all, and the model under its"
        " scope()"
    ),
    "advice.strategy.sweep": _(
        "nothing to do if they are meant to be independent, or joined by another library (Horovod)"
    ),
    "advice.strategy.join": _(
        "start them by the launcher (torchrun --nproc-per-node N) and wrap the model, as in DDP"
    ),
    "advice.strategy.devices": _(
        "list them: tf.config.list_logical_devices(); then see CUDA_VISIBLE_DEVICES and the devices"
        " given to the strategy"
    ),
    "advice.keras": _(
        "use Keras 2: pip install tf_keras, and TF_USE_LEGACY_KERAS=1 before TensorFlow is"
        " imported; or a loop of your own with strategy.run"
    ),
    "advice.seed.parameters": _(
        "set one seed on all ranks before the model is made, or broadcast rank 0's parameters"
    ),
    "advice.seed.wrapped": _("call trace() after wrapping: then this is a test that they are"),
    "advice.reduction.local": _(
        'reduce first: strategy.reduce("MEAN", value, axis=None), or look at each with'
        " strategy.experimental_local_results(value)"
    ),
    "advice.reduction.mean": _(
        'strategy.reduce("MEAN", {value}, axis=None), or divide by the global batch on each'
        " replica: tf.nn.compute_average_loss"
    ),
    "advice.reduction.check": _(
        "train once with one worker: the first {value} must be the same; if it is smaller there,"
        " reduce by MEAN"
    ),
    "advice.nonfinite.batch": _(
        "look at the batch of {ranks} in step {step}, then repeat that step with the same batch on"
        " another rank: same data or code if it fails there too"
    ),
    "advice.nonfinite.skip": _(
        "decide together whether to skip an update: all-reduce the flag before optimizer.step()"
    ),
    "advice.nonfinite.all": _(
        "look at the update before step {step}: learning rate, warm-up, clipping by norm"
    ),
    "advice.nonfinite.before": _(
        'record what each rank has before the reduction: tracekit.event("loss", value=...) with'
        " the rank's own loss"
    ),
    "advice.saturated": _(
        "look for nan_to_num, clamp or a cast to fp8 or fp16 before the reduction: it hides values"
        " that are not finite"
    ),
    "advice.loss_scale": _(
        "find the gradient that overflows: train a few steps in float32 or bfloat16; if the loss is"
        " finite there, keep the layer that overflows in float32"
    ),
    "advice.loss_scale.sharded": _(
        "share found_inf between ranks: ShardedGradScaler under FSDP, and step() on all ranks alike"
    ),
    "advice.checkpoint.checksum": _(
        "build the same model on all workers, then start them from one checkpoint"
    ),
    "advice.checkpoint.variables": _(
        "build the same model on all workers, then start them from one checkpoint"
    ),
    "advice.checkpoint.step": _(
        "restore all workers from one checkpoint: tf.train.latest_checkpoint on a shared directory"
    ),
    "advice.checkpoint.save_counter": _(
        "save on all workers at the same steps, and restore all of them from one checkpoint"
    ),
    "advice.save.all": _(
        "call it on all workers, those that are not the chief with a path of their own: under"
        " several workers saving reads variables together"
    ),
    "advice.save.slow": _(
        "look at the disk or the network that it writes to, and save in the background"
    ),
    "advice.uneven": _(
        "make shares equal (drop_last, repeat() with steps_per_epoch), or stop together: join()"
    ),
    "advice.shard.files": _(
        "shard by elements: options.experimental_distribute.auto_shard_policy ="
        " tf.data.experimental.AutoShardPolicy.DATA; or write more files"
    ),
    "advice.same_shard": _(
        "give each rank its share: DistributedSampler, or dataset.shard(world size, rank)"
    ),
    "advice.shuffle": _(
        "if its order is not random: shuffle({size}), or shuffle the files as well"
    ),
}
"""Templates by their key; part of the one catalogue."""
