"""What holds for every test: it leaves tracekit detached and the environment as it was."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import cast

import pytest

PATCHABLE = {
    "torch": ("Tensor",),
    "torch.autograd": (),
    "torch.distributed": (),
    "torch.distributed.distributed_c10d": (),
    "torch.nn.modules.module": ("Module",),
    "torch.nn.parallel": ("DistributedDataParallel",),
    "torch.optim.optimizer": ("Optimizer",),
    "torch.serialization": (),
    "torch.utils.data": ("DataLoader",),
}
"""The modules and classes of torch in which an adapter could replace functions or add hooks."""


def pytest_configure() -> None:
    """What a shell puts into the background ignores interrupts, and hands that to its children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def leaves_nothing_attached() -> Iterator[None]:
    """Fail a test that leaves a recorder, a patch, a hook or a TRACEKIT_* variable behind."""
    before = tracekit_environment()
    yield
    left = [*changed(before, tracekit_environment()), *attached(), *patches()]
    if left:
        clean_up(before)
        pytest.fail("left behind: " + ", ".join(left))


def tracekit_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TRACEKIT_")}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(f"${name}" for name in before | after if before.get(name) != after.get(name))


def attached() -> list[str]:
    """Whether this thread still has a recorder; asks only if a test imported one."""
    recorder = sys.modules.get("tracekit.recorder")
    return ["a recorder (tracekit.stop() is missing)"] if recorder and recorder.current() else []


def patches() -> list[str]:
    """The places in torch and gc that still lead into tracekit's adapters."""
    left = [f"gc.callbacks: {hook!r}" for hook in gc.callbacks if is_ours(hook)]
    if "tracekit.adapters.torch" not in sys.modules:
        return left
    for module_name, class_names in PATCHABLE.items():
        module = sys.modules.get(module_name)
        if module is None:
            continue
        for owner in (module, *(getattr(module, name) for name in class_names)):
            left += [f"{owner.__name__}.{k}" for k, v in list(vars(owner).items()) if is_ours(v)]
    return left


def is_ours(value: object) -> bool:
    """Whether a function, or any of a table of hooks, is tracekit's (functools.wraps or not)."""
    kind = type(value)  # isinstance() would ask deprecated objects of torch, and they warn
    if issubclass(kind, dict):
        return any(map(is_ours, list(cast("dict[object, object]", value).values())))
    if kind is MethodType:
        return is_ours(cast(MethodType, value).__func__)
    if kind is FunctionType:
        return str(cast(FunctionType, value).__globals__.get("__name__")).startswith("tracekit.")
    return kind.__module__.startswith("tracekit.")


def clean_up(before: dict[str, str]) -> None:
    """Put back what can be put back, so that one leaking test does not fail all later ones."""
    session = sys.modules.get("tracekit.session")
    if session:
        session.stop()
    for name in tracekit_environment():
        del os.environ[name]
    os.environ.update(before)
