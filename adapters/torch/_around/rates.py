"""The learning rate: a fact at first, an event when it changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from tracekit.adapters.torch._facts.sizes import local_bytes
from tracekit.adapters.torch._facts.telling import tell
from tracekit.adapters.torch._guard import failed, guarded
from tracekit.adapters.torch._loop import Loop
from tracekit.recorder import pause

__all__ = ["watch_rates"]

MOST_GROUPS = 8
_NO_RATE = object()
_SETTINGS = (
    "betas",
    "eps",
    "momentum",
    "nesterov",
    "weight_decay",
    "foreach",
    "fused",
    "capturable",
)


def watch_rates(optimizer: Any, loop: Loop, main: bool) -> Callable[[], None]:
    """Record an optimizer's settings now; returns what is to be called after each update."""
    rates = _Rates(optimizer, loop, {} if main else {"optimizer": type(optimizer).__name__})
    rates.tell(optimizer)
    return rates.updated


class _Rates:
    """The learning rates of the first groups of one optimizer, held weakly."""

    def __init__(self, optimizer: Any, loop: Loop, attributes: dict[str, Any]) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._recorder = loop.recorder
        self._attributes = attributes
        self._seen: list[Any] = []
        self._groups = 0
        self._rates: list[float] = []
        self._only: object = _NO_RATE  # the rate of the only group, if a change of it is seen
        self._may_change_unseen = True
        self._told = False

    @guarded("facts of the optimizer")
    def tell(self, optimizer: Any) -> None:
        """Record what the optimizer was made with."""
        rates = self._read(optimizer)
        if rates and not self._attributes:
            tell("learning_rate", rates[0])
        defaults = getattr(optimizer, "defaults", {})
        given = {key: defaults[key] for key in _SETTINGS if defaults.get(key) is not None}
        groups = {"groups": len(optimizer.param_groups), "learning_rates": rates}
        tell("optimizer", {"class": type(optimizer).__name__, **groups, **given})

    def updated(self) -> None:
        """An update was made with the rates that stand there now."""
        optimizer = self._optimizer()
        if optimizer is None or pause.on:
            return
        try:
            groups = optimizer.param_groups
            if len(groups) == 1 and groups[0]["lr"] is self._only:
                return
            for seen, group in zip(self._seen, groups):  # noqa: B905  (the others are not looked at)
                if group["lr"] is not seen:
                    break
            else:  # a number that is still the same object has not changed
                if not self._may_change_unseen and len(groups) == self._groups:
                    return
            self._look(optimizer)
        except Exception as error:
            failed("lr", error)

    def _look(self, optimizer: Any) -> None:
        before = self._rates
        told, self._told = self._told, True
        rates = self._read(optimizer)
        if rates and (rates != before or not told):
            attributes = self._attributes
            if len(rates) > 1 and min(rates) != max(rates):
                attributes = {**attributes, "lowest": min(rates), "highest": max(rates)}
            self._recorder.event("lr", rates[0], None, attributes)
        if not told:
            self._tell_state(optimizer)

    def _read(self, optimizer: Any) -> list[float]:
        self._groups = len(optimizer.param_groups)
        self._seen = [group["lr"] for group in optimizer.param_groups[:MOST_GROUPS]]
        tensors = any(isinstance(rate, torch.Tensor) for rate in self._seen)
        self._may_change_unseen = tensors or not self._told
        alone = self._groups == 1 and not self._may_change_unseen
        self._only = self._seen[0] if alone else _NO_RATE
        # A rate that lies on an accelerator is not looked at: that would wait for it.
        self._rates = [
            float(rate)
            for rate in self._seen
            if not isinstance(rate, torch.Tensor) or rate.device.type == "cpu"
        ]
        return self._rates

    def _tell_state(self, optimizer: Any) -> None:
        """After the first update the optimizer has made its state."""
        state = sum(
            local_bytes(value)
            for values in optimizer.state.values()
            for value in (values.values() if isinstance(values, dict) else ())
            if isinstance(value, torch.Tensor)
        )
        tell("optimizer_state", {**self._attributes, "bytes": state})
