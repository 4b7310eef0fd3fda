"""What the names in a profile stand for, in tracekit's words."""

from __future__ import annotations

import re
from enum import IntEnum

__all__ = [
    "DATATYPES",
    "What",
    "collective_op",
    "function_of",
    "is_root",
    "kernel_op",
    "role_of_name",
]


class What(IntEnum):
    """What an event is to us."""

    NOTHING = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    COLLECTIVE = 4
    DATA = 5
    GROUP = 6
    """Says which group has how many members."""
    CALL = 7
    """A call of a traced function: the whole step, or a part of it."""
    TASK = 8
    """Says which task of the cluster this is."""


_OP = re.compile(r"([^:]+):([A-Za-z_]\w*)")
"""An operation of a graph as the executor names it: its name and its type."""
_EAGER = re.compile(r"EagerLocalExecute: (\w+)")
_FUNCTION = re.compile(r"__(?:inference|forward)_(\w+?)_\d+")
_DATA = re.compile(r"IteratorGetNext(?:AsOptional|Sync)?Op::DoCompute|MultiDeviceIterator::GetNext")
_BACKWARD = re.compile(r"(?:^|/)(?:gradient_tape|gradients|gradients_\d+)/")
_OPTIMIZER = re.compile(
    r"(?:^|/)(?:sgd|adam|adamw|adamax|nadam|rmsprop|adagrad|adadelta|adafactor|ftrl|lion|lamb"
    r"|loss_?scale_?optimizer|optimizer)(?:_\d+)?/|/update_\d|(?:^|/)apply_gradients",
    re.IGNORECASE,
)
_APPLY = ("ResourceApply", "ResourceSparseApply", "ApplyAdam", "ApplyGradient", "ApplyMomentum")
# These only wait for others, move control along, or hold the operations of a function inside.
_WAITING = re.compile(
    r"_?(?:Host)?(?:Send|Recv)(?:TPU)?|IteratorGetNext\w*|MultiDeviceIterator\w*|RemoteCall"
    r"|(?:Stateful)?PartitionedCall|(?:Stateless)?(?:While|If|Case)|NoOp|_?XlaRun|_?Arg|_?Retval"
    r"|Barrier\w*|Queue\w+|\w*Dataset\w*|Iterator\w*|OneShotIterator|SymbolicGradient"
)
_COLLECTIVES = {
    "Reduce": "all_reduce",
    "ReduceV2": "all_reduce",
    "ReduceV3": "all_reduce",
    "Gather": "all_gather",
    "GatherV2": "all_gather",
    "BcastSend": "broadcast",
    "BcastRecv": "broadcast",
    "BcastSendV2": "broadcast",
    "BcastRecvV2": "broadcast",
    "ReduceScatterV2": "reduce_scatter",
    "AllToAllV2": "all_to_all",
    "AllToAllV3": "all_to_all",
    "Permute": "collective_permute",
}
_NCCL_OPS = {
    "NcclAllReduce": "all_reduce",
    "_NcclBroadcastSend": "broadcast",
    "_NcclBroadcastRecv": "broadcast",
    "_NcclReduceSend": "reduce",
    "_NcclReduceRecv": "reduce",
}
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_?(\w+?)(?:_|$)", re.IGNORECASE)
_KERNELS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
DATATYPES = {
    "f16": "float16", "half": "float16", "f32": "float32", "float": "float32", "f64": "float64",
    "double": "float64", "bf16": "bfloat16", "i32": "int32", "int32": "int32", "i64": "int64",
    "u8": "uint8", "u32": "uint32", "u64": "uint64", "i8": "int8", "int8": "int8", "int64": "int64",
    "uint8": "uint8", "uint32": "uint32", "uint64": "uint64",
}  # fmt: skip


def collective_op(name: str) -> str | None:
    """The collective operation that an event of the host is; None when it is none.

    TensorFlow's gather gives every member all parts, which is an all_gather elsewhere.
    """
    match = _OP.fullmatch(name)
    if match is None:
        return None
    type_ = match[2]
    if type_.startswith("Collective"):
        return _COLLECTIVES.get(type_.removeprefix("Collective"))
    return _NCCL_OPS.get(type_)


def is_root(name: str) -> bool:
    """Whether this member is the one that the others of a broadcast get their values from."""
    return "BcastSend" in name or "BroadcastSend" in name


def role_of_name(name: str) -> What:
    """What an event of a host's plane is."""
    match = _OP.fullmatch(name)
    if match is not None:
        op, type_ = match[1], match[2]
        if type_.startswith("Collective") or type_ in _NCCL_OPS:
            return What.COLLECTIVE if collective_op(name) else What.NOTHING
        if _WAITING.fullmatch(type_):
            return What.NOTHING
        if type_.startswith(_APPLY) or _OPTIMIZER.search(op):
            return What.OPTIMIZER
        return What.BACKWARD if _BACKWARD.search(op) else What.FORWARD
    if _DATA.fullmatch(name):
        return What.DATA
    if name == "CollectiveExecutor::CompleteParams":
        return What.GROUP
    if name == "RemoteCallOp":
        return What.TASK
    eager = _EAGER.match(name)
    if eager is not None:
        if function_of(name) is not None:
            return What.CALL
        known = _WAITING.fullmatch(eager[1]) or eager[1].startswith(("Collective", "_"))
        return What.NOTHING if known else What.FORWARD
    return What.NOTHING


def function_of(name: str) -> str | None:
    """The function that is called, without the number that every trace of it has."""
    match = _EAGER.match(name)
    found = _FUNCTION.fullmatch(match[1]) if match else None
    return found[1] if found else None


def kernel_op(name: str) -> tuple[str, str | None] | None:
    """Operation and data type of one of NCCL's kernels; None for other kernels."""
    match = _KERNEL.match(name)
    if match is None:
        return None
    words = [word.lower() for word in re.split(r"[_(<]", name)]
    dtype = next((DATATYPES[word] for word in words if word in DATATYPES), None)
    return _KERNELS.get(match[1].lower(), "other"), dtype
