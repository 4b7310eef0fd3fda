"""What can be known of a DistributedDataParallel object: parameters, buckets, hooks, divisor."""

from __future__ import annotations

import weakref
from itertools import accumulate
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from tracekit.adapters.torch._comm.group import group_of

__all__ = ["Replica", "ddp_around", "is_compiled", "replicas_in"]


def replicas_in(model: torch.nn.Module) -> list[DistributedDataParallel]:
    """The DDP objects that a model is or contains, also below ``torch.compile``."""
    return [module for module in model.modules() if isinstance(module, DistributedDataParallel)]


def ddp_around(model: torch.nn.Module) -> DistributedDataParallel | None:
    """The DDP object whose forward runs at the moment with this model inside, if any."""
    active = getattr(DistributedDataParallel, "_active_ddp_module", None)
    return active if active is not None and active.module is model else None


_MOST_BUCKETS = 100


def _split(sizes: Any) -> list[str]:
    return [size for size in str(sizes or "").split(",") if size.strip()]


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether ``torch.compile`` was applied to a model, as a function or as a method."""
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None


_IN_CPP = "BuiltinCommHookType"


class Replica:
    """One DDP object, held weakly, and its group."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = weakref.ref(ddp)
        self.process_group: Any = ddp.process_group
        self.group = group_of(self.process_group)
        parameters = self.parameters()
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in parameters)
        dtypes = {str(p.dtype).removeprefix("torch.") for p in parameters}
        self.dtype = dtypes.pop() if len(dtypes) == 1 else None
        # Older versions keep no list of hooks, but the name of one; those in C++ have an enum's.
        hook = str(self._logged().get("comm_hook") or _IN_CPP)
        self._hooked_in_python = not hook.startswith(_IN_CPP)

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """The object, while it lives."""
        return self._ddp()

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters whose gradients are reduced, in the reducer's order."""
        ddp = self._ddp()
        if ddp is None:
            return []
        ignored = getattr(ddp, "parameters_to_ignore", ())
        found: dict[torch.nn.Parameter, None] = {}
        for prefix, module in ddp.module.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad and f"{prefix}.{name}" not in ignored:
                    found[parameter] = None
        return list(found)

    def reduces_next(self) -> bool | None:
        """Whether the backward of the forward that runs now reduces gradients, and C++ does it.

        None where it reduces none; False where a hook in Python makes the calls, so that each is
        seen as it is made.
        """
        ddp = self._ddp()
        if ddp is None or not ddp.require_backward_grad_sync:
            return None
        try:
            return not ddp._comm_hooks
        except AttributeError:
            return not self._hooked_in_python

    def may_leave_gradients_out(self) -> bool:
        """Whether a backward may be complete although some gradients never came."""
        ddp = self._ddp()
        return ddp is not None and bool(
            getattr(ddp, "find_unused_parameters", False) or getattr(ddp, "static_graph", False)
        )

    def reduces(self) -> bool:
        """Whether the C++ reducer reduces all gradients during the backward."""
        ddp = self._ddp()
        return (
            ddp is not None
            and hasattr(ddp, "reducer")
            and not getattr(ddp, "_use_python_reducer", False)
            and not getattr(ddp, "_delay_all_reduce_all_params", False)
        )

    def has_hook(self) -> bool:
        """Whether a communication hook is registered, in Python or in C++."""
        ddp = self._ddp()
        return ddp is not None and bool(
            getattr(ddp, "_comm_hooks", None) or self._logged().get("comm_hook")
        )

    def described(self, compiled: bool = False) -> dict[str, Any]:
        """How the object is set up, and the all-reduces of a backward in the order they are sent.

        Where the forward is compiled DDP's buckets still are what is reduced.
        """
        ddp = self._ddp()
        if ddp is None:
            return {}
        logged = self._logged()
        rebuilt = [int(size) for size in _split(logged.get("rebuilt_bucket_sizes"))]
        sizes = rebuilt or [int(size) for size in _split(logged.get("bucket_sizes"))]
        found: dict[str, Any] = {
            "group": self.group.id,
            "buckets": len(sizes) or None,
            "bucket_bytes": sizes[:_MOST_BUCKETS] or None,
            "rebuilt": bool(rebuilt),
            "bucket_cap_bytes": logged.get("bucket_cap_bytes"),
            "comm_hook": str(logged.get("comm_hook") or "") or None,
            "compiled": compiled or is_compiled(ddp) or is_compiled(ddp.module),
        }
        for name in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view"):
            found[name] = bool(getattr(ddp, name, False))
        found["broadcast_buffers"] = bool(getattr(ddp, "broadcast_buffers", True))
        return {name: value for name, value in found.items() if value is not None}

    def divisor_varies(self) -> bool:
        """Whether ``Join`` divides by the number of ranks that still have inputs."""
        ddp = self._ddp()
        config = getattr(ddp, "_join_config", None)
        return bool(getattr(config, "enable", False)) and not getattr(
            ddp, "_divide_by_initial_world_size", True
        )

    def buckets(self) -> tuple[list[list[int]] | None, bool]:
        """The indices of the parameters of each bucket, and whether they stay so.

        Buckets are rebuilt once, in the order in which gradients came, after the first backward
        that synchronises. None where torch does not tell.
        """
        logged = self._logged()
        count = len(self.parameters())
        try:
            if logged.get("num_parameter_tensors", count) != count:
                return None, False
            rebuilt = str(logged.get("rebuilt_per_bucket_param_indices") or "")
            if rebuilt:
                buckets = [[int(index) for index in part.split()] for part in rebuilt.split(",")]
                if sorted(index for bucket in buckets for index in bucket) == [*range(count)]:
                    return buckets, True
                return None, True
            if getattr(self._ddp(), "_has_rebuilt_buckets", False):
                return None, False  # it will be logged with the next forward
            sizes = [int(size) for size in str(logged.get("bucket_sizes") or "").split(",") if size]
            return self._initial_buckets(sizes), not self._will_rebuild()
        except ValueError:
            return None, False

    def _will_rebuild(self) -> bool:
        ddp = self._ddp()
        return ddp is not None and bool(
            not getattr(ddp, "find_unused_parameters", False) or getattr(ddp, "static_graph", False)
        )

    def _initial_buckets(self, sizes: list[int]) -> list[list[int]] | None:
        """Before the rebuild buckets are filled with the parameters in reverse order."""
        parameters = self.parameters()
        backwards = range(len(parameters) - 1, -1, -1)
        filled = accumulate(parameters[i].numel() * parameters[i].element_size() for i in backwards)
        borders = list(accumulate(sizes))
        buckets: list[list[int]] = [[]]
        for index, total in zip(backwards, filled, strict=True):
            buckets[-1].append(index)
            if borders and total == borders[len(buckets) - 1]:
                buckets.append([])
            elif len(buckets) > len(borders) or total > borders[len(buckets) - 1]:
                return None  # of several dtypes or devices: filled in another order
        return buckets[:-1] if len(buckets) == len(sizes) + 1 else None

    def _logged(self) -> dict[str, Any]:
        ddp = self._ddp()
        try:
            return dict(ddp._get_ddp_logging_data()) if ddp is not None else {}
        except Exception:
            return {}
