"""One set of judges for ranks and for units: peer rule, mean rule, now and then, uneven data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analysis.basis.steps import Places, Steps
from tracekit.analysis.basis.tables import PHASES, Tables
from tracekit.analysis.options import Options
from tracekit.analysis.roles.peers import Sets
from tracekit.analysis.slow.stragglers import sign_test

__all__ = ["Array", "Court", "Suspect"]

Array = npt.NDArray[np.float64]
_EVENTS = ("checkpoint", "gc", "eval", "compile")
"""Phases that are events of their own: a rank has one in a step or has none."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """One rank under judgement; times are nanoseconds a step."""

    ranks: tuple[int, ...]
    """The rank; several where they are late together."""
    kind: str
    """rank, or intermittent."""
    rules: tuple[str, ...]
    share: float
    """Imposed wait of the usual step (rank) or of the mean step (intermittent), in median steps."""
    imposed: float
    """Imposed wait of the mean step."""
    ratio: float
    """Mean own work over the mean of the peers' means."""
    p: float | None
    cause: str
    excess: dict[str, float]
    places: Places
    """The steps in which it was late."""
    confirmed: bool
    """Whether statistics leave no other reading."""

    @property
    def rank(self) -> int:
        """The rank, or the first of several."""
        return self.ranks[0]


class Court:
    """What the rules share: the arrays, and the work of each phase beside that of the peers."""

    def __init__(
        self,
        tables: Tables,
        steps: Steps,
        sets: Sets,
        options: Options,
        own: Array,
        imposed: Array,
    ) -> None:
        self.tables, self.steps, self.options = tables, steps, options
        self.own, self.imposed = own, imposed
        self.wall = tables.values["wall"].astype(np.float64).mean(axis=1)
        self.step = float(np.median(self.wall[steps.used]))
        place = {rank: i for i, rank in enumerate(tables.ranks)}
        self.sets = [[place[rank] for rank in ranks] for ranks in sets if len(ranks) > 1]
        self.peers_of = {
            i: np.array([j for j in ranks if j != i]) for ranks in self.sets for i in ranks
        }
        self.met = bool(tables.meetings[steps.warm].any())
        mean = own[steps.used].mean(axis=0)
        self.ratio = np.full(len(tables.ranks), np.nan)
        for ranks in self.sets or [list(range(len(tables.ranks)))]:
            self.ratio[ranks] = mean[ranks] / mean[ranks].mean()
        self.guilty: set[int] = set()
        self.tests = len(self.peers_of)
        self.slowest = self._slowest()
        means = [block.mean(axis=0) for block in self._blocks(imposed[steps.used])]
        self.usual: Array = np.median(means, axis=0) / self.step
        self.spent = {
            phase: tables.values[f"own_{phase}"][steps.warm].sum(axis=0) for phase in _EVENTS
        }

    # The peer rule and the mean rule

    def persistent(self) -> list[Suspect]:
        """Ranks that are late step after step."""
        found = []
        for i in sorted(set(self.peers_of) - self.guilty):
            suspect = self._by_arrivals(i) if self.met else self._by_work(i)
            if suspect is not None:
                found.append(suspect)
                self.guilty.add(i)
        return sorted(found, key=lambda suspect: -suspect.share)

    def _by_arrivals(self, i: int) -> Suspect | None:
        used, options = self.steps.used, self.options
        share = float(self.usual[i])
        if share < options.straggler_warning:
            return None
        imposed = self.imposed[used, i]
        noticed = imposed >= options.straggler_warning / 2 * self.step
        if noticed.mean() < options.persistent_share:
            return None
        ranks, positive = len(self.peers_of[i]) + 1, int(self.slowest[:, i].sum())
        p = sign_test(positive, len(self.slowest), 1 / ranks, self.tests)
        late = imposed >= options.straggler_warning * self.step
        confirmed = p < options.p_value
        rules = ("peer", "mean") if self.ratio[i] > options.mean_rule else ("peer",)
        if not confirmed and (self._long_enough(i) or late.mean() < options.consistent_share):
            return None
        return self.suspect(i, "rank", rules, share, p, used[late], confirmed)

    def _by_work(self, i: int) -> Suspect | None:
        """Without meetings nobody waits: own work alone speaks, and never with certainty."""
        used, options = self.steps.used, self.options
        others = self.own[np.ix_(used, self.peers_of[i])].mean(axis=1)
        slow = self.own[used, i] > options.mean_rule * (
            (others * len(self.peers_of[i]) + self.own[used, i]) / (len(self.peers_of[i]) + 1)
        )
        if self.ratio[i] <= options.mean_rule or slow.mean() < options.consistent_share:
            return None
        return self.suspect(i, "rank", ("mean",), 0.0, None, used[slow], False)

    def _blocks(self, values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        count = max(1, len(values) // self.options.block_steps)
        return [block for block in np.array_split(values, count) if len(block)]

    def _slowest(self) -> npt.NDArray[np.bool_]:
        """Which rank was slowest in each block of steps, by the median of its steps.

        By own work where lateness may be another rank's, else by lateness.
        """
        signs = self.tables.lateness if self.tables.ahead is None else self.tables.ahead
        blocks = self._blocks(signs[self.steps.used])
        slowest = np.zeros((len(blocks), len(self.tables.ranks)), np.bool_)
        for number, block in enumerate(blocks):
            middle = _middle(block)
            for ranks in self.sets:
                worst = ranks[int(np.argmax(middle[ranks]))]
                slowest[number, worst] = middle[worst] > 0
        return slowest

    def _long_enough(self, i: int) -> bool:
        """Whether the sign test could have confirmed a rank that is slowest in every block."""
        blocks, ranks = len(self.slowest), len(self.peers_of[i]) + 1
        return sign_test(blocks, blocks, 1 / ranks, self.tests) < self.options.p_value

    # Now and then

    def intermittent(self) -> list[Suspect]:
        """Ranks that are late in some steps, each time for the same reason."""
        late = self.imposed[self.steps.warm] >= self.options.spike * self.step
        late[:, sorted(self.guilty)] = False
        found = []
        for i in sorted(set(self.peers_of) - self.guilty):
            suspect = self._by_events(i, late) or self._by_chance(i, late)
            if suspect is not None:
                found.append(suspect)
        return sorted(found, key=lambda suspect: -suspect.share)

    def _by_events(self, i: int, late: npt.NDArray[np.bool_]) -> Suspect | None:
        """A checkpoint, a collection or the like that this rank has and its peers have not."""
        warm, options = self.steps.warm, self.options
        for phase in _EVENTS:
            if not self._only_here(i, phase):
                continue
            spent = self.tables.values[f"own_{phase}"][warm]
            more = spent[:, i] - np.median(spent[:, self.peers_of[i]], axis=1)
            struck = more >= options.spike * self.step
            if struck.sum() < options.spikes_at_least:
                continue
            places = warm[struck & late[:, i]]
            if len(places) < options.consistent_share * struck.sum():
                continue
            suspect = self._now_and_then(i, places, late)
            if suspect.cause == phase:
                return suspect
        return None

    def _by_chance(self, i: int, late: npt.NDArray[np.bool_]) -> Suspect | None:
        """Late steps that are this rank's too often for chance, most of them alike."""
        places = self.steps.warm[late[:, i]]
        if len(places) < self.options.spikes_at_least:
            return None
        suspect = self._now_and_then(i, places, late)
        if suspect.cause == "unknown" or (suspect.p or 0.0) >= self.options.p_value:
            return None
        alike = [self._cause(self._excess(i, np.array([place]))) for place in places.tolist()]
        enough = self.options.consistent_share * len(alike)
        return suspect if alike.count(suspect.cause) >= enough else None

    def _now_and_then(self, i: int, places: Places, late: npt.NDArray[np.bool_]) -> Suspect:
        warm = self.steps.warm
        share = float(self.imposed[warm, i].mean() / self.wall[warm].mean())
        p = self._chance(int(late[:, i].sum()), int(late.sum()))
        return self.suspect(i, "intermittent", ("peer",), share, p, places, True)

    def _chance(self, here: int, all_ranks: int) -> float:
        """The probability that one of the ranks has so many of all late steps."""
        return sign_test(here, all_ranks, 1 / self.tests, self.tests)

    def _only_here(self, i: int, phase: str) -> bool:
        """Whether this phase takes much more time on this rank than on any of its peers."""
        spent = self.spent[phase]
        return bool(spent[i] > 3 * spent[self.peers_of[i]].max())

    # Causes

    def suspect(
        self,
        i: int,
        kind: str,
        rules: tuple[str, ...],
        share: float,
        p: float | None,
        places: Places,
        confirmed: bool,
    ) -> Suspect:
        excess = self._excess(i, places)
        steady = self._excess(i, places, self.options.cause_quantile)
        over = self.steps.warm if kind == "intermittent" else self.steps.used
        imposed = float(self.imposed[over, i].mean())
        rank = self.tables.ranks[i]
        return Suspect(
            (rank,), kind, rules, share, imposed, float(self.ratio[i]), p, self._cause(steady),
            excess, places, confirmed,
        )  # fmt: skip

    def _excess(self, i: int, places: Places, quantile: float = 0.5) -> dict[str, float]:
        """By how much each phase of a rank takes longer than its peers', in the usual such step.

        A low quantile leaves what is there in most of the steps: what the others do on the same
        cores shows in some only. The optimizer runs after the last meeting of its step: what it
        is late there shows in the next one.
        """
        excess = {}
        for phase in PHASES:
            values = self.tables.values[f"own_{phase}"]
            at = np.maximum(places - 1, 0) if phase == "optimizer" and self.met else places
            others = np.median(values[np.ix_(at, self.peers_of[i])], axis=1)
            more = values[at, i] - others
            excess[phase] = float(np.nanquantile(more, quantile)) if len(more) else 0.0
        return excess

    def _cause(self, excess: dict[str, float]) -> str:
        positive = sum(max(0.0, ns) for ns in excess.values())
        phase = max(excess, key=lambda name: excess[name])
        return phase if 0 < positive * self.options.cause_share <= excess[phase] else "unknown"

    # Uneven data

    def imbalance(self) -> float | None:
        """Whether every rank's work varies by itself, forward and backward together.

        Noise of the machine moves the phases one by one; a long batch moves both.
        """
        used, options = self.steps.used, self.options
        wait = self.tables.values["exposed_wait"][used].mean() / self.step
        if len(used) < options.shares_steps or wait < options.imbalance_wait or not self.sets:
            return None
        values = self.tables.values
        forward, backward = (self._own_variation(values[f"own_{p}"]) for p in _COMPUTE)
        correlations = []
        for i in sorted(self.peers_of):
            usual = np.median(values["own_forward"][used, i] + values["own_backward"][used, i])
            both = forward[:, i] + backward[:, i]
            if not usual or both.std() < options.imbalance_variation * usual:
                return None
            if not forward[:, i].std() or not backward[:, i].std():
                return None
            correlations.append(np.corrcoef(forward[:, i], backward[:, i])[0, 1])
        least = float(np.median(correlations))
        return least if least >= options.imbalance_correlation else None

    def _own_variation(self, values: npt.NDArray[np.float32]) -> Array:
        """What is left of a phase's time when what all ranks have in common is taken away."""
        used = values[self.steps.used].astype(np.float64)
        common: Array = np.median(used, axis=1, keepdims=True)
        return used - common


_COMPUTE = ("forward", "backward")


def _middle(block: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The median of what is known of each column; 0 where nothing is."""
    if not np.isnan(block).any():
        return np.asarray(np.median(block, axis=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's word for an empty column
        return np.asarray(np.nan_to_num(np.nanmedian(block, axis=0)))
