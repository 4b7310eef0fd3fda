"""What Flight Recorder calls things, and what tracekit calls them."""

from __future__ import annotations

__all__ = ["DTYPES", "FREE_SIZES", "OPERATIONS", "bytes_of"]

OPERATIONS = {
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_v": "all_gather",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_v": "reduce_scatter",
    "reduce_scatter_coalesced": "reduce_scatter",
    "all_reduce_barrier": "barrier",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
}
"""Names of a collective in lower case, where they differ from the operation's."""

FREE_SIZES = frozenset(
    """
    all_gather all_gather_v all_gather_v_single all_to_all all_to_all_single all_to_all_v_single
    allgather alltoall alltoall_base barrier all_reduce_barrier coalesced gather reduce_scatter
    reduce_scatter_v scatter split new_window
    """.split()  # noqa: SIM905
)
"""Calls whose ranks may bring tensors of different sizes."""

DTYPES = {
    "Bool": ("bool", 1),
    "Byte": ("uint8", 1),
    "Char": ("int8", 1),
    "Short": ("int16", 2),
    "Int": ("int32", 4),
    "Long": ("int64", 8),
    "UInt16": ("uint16", 2),
    "UInt32": ("uint32", 4),
    "UInt64": ("uint64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "ComplexHalf": ("complex32", 4),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
    "Float8_e4m3fn": ("float8_e4m3fn", 1),
    "Float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "Float8_e5m2": ("float8_e5m2", 1),
    "Float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "Float8_e8m0fnu": ("float8_e8m0fnu", 1),
}
"""The name and the size in bytes of each type of number."""


def bytes_of(elements: int, dtype: str | None) -> int | None:
    """How many bytes so many numbers take; None where the type is not known."""
    size = next((size for name, size in DTYPES.values() if name == dtype), None)
    return None if size is None else elements * size
