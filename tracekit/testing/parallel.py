"""Runs of several kinds of parallelism, made to order.

    run = ParallelBuilder(dp=2, tp=2)
    run.steps(40, forward={3: 18})         # rank 3 needs 18 ms, the others the usual 10

Ranks are numbered as ``init_device_mesh(…, (pp, dp, tp))`` numbers them: tp fastest.
"""

from __future__ import annotations

from typing import Any

from tracekit.model import group_id
from tracekit.testing.builder import Amount, RunBuilder

__all__ = ["ParallelBuilder"]

_MS = 1_000_000


class ParallelBuilder(RunBuilder):
    """Builds a training of ``pp`` stages of ``dp`` replicas of ``tp`` ranks that share a layer.

    A forward has ``layers``, at whose ends the ranks of a layer meet (tp), or at whose beginnings
    the replicas gather parameters (``sharded``). Stages work through ``micro`` micro-batches,
    all forwards first, and send on what they have. Gradients are reduced at the end of the last
    backward, then with ``clip`` all ranks of the world agree on the norm. With ``waits``
    collectives run beside and are waited for at once. Only ``told`` runs say the ranks' roles.
    """

    def __init__(
        self,
        *,
        dp: int = 1,
        tp: int = 1,
        pp: int = 1,
        layers: int = 2,
        micro: int = 1,
        sharded: bool = False,
        waits: bool = False,
        clip: bool = False,
        told: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(dp * tp * pp, **options)
        self.dp, self.tp, self.pp = dp, tp, pp
        self.layers, self.micro, self.sharded, self.clip = layers, micro, sharded, clip
        self.waits = waits
        self._sent: dict[tuple[int, int], int] = {}
        self._inner: list[dict[str, Any]] = []
        ranks = range(self.world_size)
        for members in {*map(self.replicas_of, ranks), *map(self.layer_of, ranks)}:
            if len(members) > 1:
                name = {"id": group_id(members), "name": f"of {members[0]}", "ranks": list(members)}
                self.fact("group", name, members[0])
        if told:
            sizes = {"pp": pp, "dp": dp, "tp": tp}
            for rank in ranks:
                place = {"pp": rank // (dp * tp), "dp": rank // tp % dp, "tp": rank % tp}
                self.fact("role", {**place, "sizes": sizes, "source": "device_mesh"}, rank)

    def stage(self, number: int) -> tuple[int, ...]:
        """The ranks of a pipeline stage."""
        size = self.dp * self.tp
        return tuple(range(number * size, (number + 1) * size))

    def replicas_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that do the same work on other data."""
        first = rank - rank // self.tp % self.dp * self.tp
        return tuple(range(first, first + self.dp * self.tp, self.tp))

    def layer_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that share each layer with this one."""
        first = rank - rank % self.tp
        return tuple(range(first, first + self.tp))

    def step(
        self,
        *,
        data: Amount | None = None,
        forward: Amount | None = None,
        backward: Amount | None = None,
        optimizer: Amount | None = None,
        checkpoint: Amount = 0.0,
        gc: Amount = 0.0,
        other: Amount = 0.0,
    ) -> int:
        """Train one step; forward and backward are those of one micro-batch."""
        step, begins = self._begin_step()
        ranks = range(self.world_size)
        for rank in ranks:
            self._plain(rank, step, "checkpoint", self._amount(checkpoint, rank, 0.0), "torch.save")
            self._plain(rank, step, "gc", self._amount(gc, rank, 0.0))
            self.now[rank] += self._amount(other, rank, 0.0)
            self._plain(rank, step, "data", self._usual(data, rank, "data"), "data_wait")
        for micro in range(self.micro):
            for stage in range(self.pp):
                self._hand_on(step, stage, -1)
                self._pass(step, micro, "forward", stage, forward)
        for micro in range(self.micro):
            for stage in reversed(range(self.pp)):
                self._hand_on(step, stage, +1)
                self._pass(step, micro, "backward", stage, backward)
        if self.clip:
            self._meet(step, "all_reduce", tuple(ranks))
        for rank in ranks:
            amount = self._usual(optimizer, rank, "optimizer")
            self._plain(rank, step, "optimizer", amount, "optimizer_step")
            self.span(rank, "step", begins[rank], self.now[rank], "train_step", step)
        return step

    def _hand_on(self, step: int, stage: int, way: int) -> None:
        """The ranks of a stage get what the one before (-1) or behind (+1) it has sent."""
        if not 0 <= stage + way < self.pp:
            return
        hop = round(self.transfer * _MS / 4)
        for rank in self.stage(stage):
            peer = rank + way * self.dp * self.tp
            seq = self._sequence(f"{peer} to {rank}")
            start = self._sent.pop((peer, rank))
            self.collective(peer, "send", seq, start, start + hop, peer_rank=rank, step=step)
            end = max(self.now[rank], start) + hop
            self.collective(rank, "recv", seq, self.now[rank], end, peer_rank=peer, step=step)
            self.now[rank] = end

    def _pass(self, step: int, micro: int, kind: str, stage: int, work: Amount | None) -> None:
        """One micro-batch goes through the layers of a stage."""
        ranks = self.stage(stage)
        starts = {rank: self.now[rank] for rank in ranks}
        needed = {rank: self._usual(work, rank, kind) for rank in ranks}
        self._inner = []
        for _ in range(self.layers):
            if self.sharded:
                self._meet_all(step, "all_gather", [self.replicas_of(rank) for rank in ranks])
            for rank in ranks:
                self.now[rank] += needed[rank] // self.layers
            self._meet_all(step, "all_reduce", [self.layer_of(rank) for rank in ranks])
        if kind == "backward" and micro == self.micro - 1:
            op = "reduce_scatter" if self.sharded else "all_reduce"
            self._meet_all(step, op, [self.replicas_of(rank) for rank in ranks])
        for rank in ranks:
            span = self.span(rank, kind, starts[rank], self.now[rank], kind, step, micro_step=micro)
            for inner in self._inner:
                if inner["rank"] == rank:
                    inner["parent_id"] = span
            way = 1 if kind == "forward" else -1
            if 0 <= stage + way < self.pp:
                self._sent[rank, rank + way * self.dp * self.tp] = self.now[rank]
                self.now[rank] += round(self.transfer * _MS / 4)

    def _meet_all(self, step: int, op: str, groups: list[tuple[int, ...]]) -> None:
        for members in dict.fromkeys(groups):
            if len(members) > 1:
                self._meet(step, op, members)

    def _meet(self, step: int, op: str, members: tuple[int, ...]) -> None:
        """All members of a group wait for the last one."""
        group = group_id(members)
        seq = self._sequence(group)
        end = max(self.now[rank] for rank in members) + round(self.transfer * _MS / 4)
        key: dict[str, Any] = {"group": group, "group_size": len(members), "step": step}
        for rank in members:
            start = self.now[rank]
            lane = f"group:{group}" if self.waits else "thread:MainThread"
            self.collective(rank, op, seq, start, end, lane=lane, **key)
            self._inner.append(self.spans[-1])
            if self.waits:
                self.collective(rank, op, seq, start, end, **key)
                self.spans[-1]["name"] = "wait"
                self._inner.append(self.spans[-1])
            self.now[rank] = end
