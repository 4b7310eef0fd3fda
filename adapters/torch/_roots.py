"""Which modules a training loop calls, found from the parameters that its optimizer holds."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import torch

__all__ = ["inner_modules", "parameters_of", "roots_of"]


def parameters_of(optimizer: Any) -> set[int]:
    """The identities of the parameters that an optimizer updates."""
    return {
        id(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if isinstance(parameter, torch.nn.Parameter)
    }


def roots_of(parameters: Collection[int]) -> list[torch.nn.Module]:
    """The outermost modules around these parameters: wrappers, compiled ones, plain ones.

    Nothing keeps a list of modules, and one that did would cost every module; the garbage
    collector knows them all. Asking it takes some 0.1 s for a million objects.
    """
    modules = _all_modules()
    around: defaultdict[int, list[torch.nn.Module]] = defaultdict(list)
    waiting = []
    for module in modules:
        for child in _values(module, "_modules"):
            around[id(child)].append(module)
        if any(id(parameter) in parameters for parameter in _values(module, "_parameters")):
            waiting.append(module)
    roots: dict[int, torch.nn.Module] = {}
    seen: set[int] = set()
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        outer = around.get(id(module))
        if outer:
            waiting += outer
        else:
            roots[id(module)] = module
    return list(roots.values())


def inner_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The next modules below that can be called and have something to train."""
    found: list[torch.nn.Module] = []
    for child in module.children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            found += inner_modules(child)
        elif any(parameter.requires_grad for parameter in child.parameters()):
            found.append(child)
    return found


def _all_modules() -> list[torch.nn.Module]:
    objects = gc.get_objects()
    # By type, since asking an object for its class may run code of its own.
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.nn.Module)}
    return [one for one in objects if type(one) in kinds]


def _values(module: torch.nn.Module, name: str) -> list[Any]:
    return list((vars(module).get(name) or {}).values())
