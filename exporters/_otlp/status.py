"""Reads google.rpc.Status, in which servers explain a refusal.

By hand, for the package with its class is installed with none of OTLP's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Status", "read_status"]

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_SIZES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_RETRY_INFO = b"/google.rpc.RetryInfo"


@dataclass(frozen=True, slots=True)
class Status:
    """What a server says about a refusal."""

    message: str = ""
    after_s: float | None = None
    """The pause that a RetryInfo asks for, in seconds, not below 0."""


def read_status(data: bytes) -> Status:
    """Read a status and the RetryInfo among its details.

    Raises ``ValueError`` where it is none.
    """
    message, after_s = b"", None
    for number, value in _fields(data):
        if number == 2 and isinstance(value, bytes):
            message = value
        elif number == 3 and isinstance(value, bytes):
            detail = dict(_fields(value))
            kind, content = detail.get(1), detail.get(2, b"")
            if isinstance(kind, bytes) and kind.endswith(_RETRY_INFO) and after_s is None:
                after_s = _delay_s(content)
    return Status(message.decode("utf-8", "replace"), after_s)


def _delay_s(retry_info: bytes | int) -> float:
    """The duration in a RetryInfo: whole seconds and nanoseconds, each left out when 0."""
    duration = dict(_fields(_as_bytes(retry_info))).get(1, b"")
    parts = dict(_fields(_as_bytes(duration)))
    seconds, nanos = (_signed(parts.get(number, 0)) for number in (1, 2))
    return max(seconds + nanos / 1e9, 0.0)


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a message, by number; fixed ones as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in _SIZES:
            size = _SIZES[wire]
        else:
            raise ValueError("not a protobuf message")
        if size > len(data) - at:
            raise ValueError("a protobuf message that is cut off")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of at most 64 bits, and where it ends."""
    value = 0
    for position, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value & ((1 << 64) - 1), at + position + 1
    raise ValueError("not a protobuf message")


def _signed(value: bytes | int) -> int:
    if isinstance(value, bytes):
        raise ValueError("not a protobuf message")
    return value - (1 << 64) if value >> 63 else value


def _as_bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("not a protobuf message")
    return value
