"""The bytes of a google.rpc.Status, whose class not every machine has."""

from __future__ import annotations

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

__all__ = ["delay", "status_bytes"]


def status_bytes(message: str = "", *details: tuple[str, bytes]) -> bytes:
    """A status with these details, each the URL of its type and its bytes."""
    packed = [AnyMessage(type_url=url, value=value).SerializeToString() for url, value in details]
    said = _field(2, message.encode()) if message else b""
    return said + b"".join(_field(3, detail) for detail in packed)


def delay(seconds: int, nanos: int = 0) -> tuple[str, bytes]:
    """The detail that asks for a pause."""
    duration = Duration(seconds=seconds, nanos=nanos).SerializeToString()
    return "type.googleapis.com/google.rpc.RetryInfo", _field(1, duration)


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 1 << 14
    low, high = len(content) & 0x7F, len(content) >> 7
    return bytes([number << 3 | 2, *([low | 0x80, high] if high else [low])]) + content
