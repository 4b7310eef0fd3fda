"""A server's explanation is read without the package of its class."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from tests.exporters.otlp.statuses import delay, status_bytes
from tracekit.exporters._otlp.status import Status, read_status


def test_an_empty_status_says_nothing() -> None:
    assert read_status(b"") == Status("", None)


def test_the_message_is_read() -> None:
    assert read_status(status_bytes("no such tenant ü")) == Status("no such tenant ü")
    assert read_status(b"\x12\x01\xff") == Status("\ufffd")


@pytest.mark.parametrize(
    ("seconds", "nanos", "after_s"),
    [(2, 500_000_000, 2.5), (0, 0, 0.0), (0, 1_000_000, 0.001), (1 << 40, 0, float(1 << 40))],
)
def test_the_pause_is_read(seconds: int, nanos: int, after_s: float) -> None:
    assert read_status(status_bytes("x", delay(seconds, nanos))) == Status("x", after_s)


def test_a_pause_below_nothing_is_none_at_all() -> None:
    assert read_status(status_bytes("", delay(-3, -1))).after_s == 0.0


def test_other_details_are_passed_over() -> None:
    other = ("type.googleapis.com/google.rpc.ErrorInfo", b"\x0a\x01x")
    assert read_status(status_bytes("", other)).after_s is None
    assert read_status(status_bytes("", other, delay(3), delay(4))).after_s == 3.0


def test_numbers_of_other_kinds_are_passed_over() -> None:
    data = b"\x08\x03" + b"\x21" + bytes(8) + b"\x2d" + bytes(4) + status_bytes("x")
    assert read_status(data) == Status("x")


@pytest.mark.parametrize("data", [b"<html>", b"\xff" * 20, b"\x12\x09x", b"\x0b", b"\x08", b"\x80"])
def test_what_is_no_status_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="protobuf"):
        read_status(data)


def test_no_bytes_whatever_raise_anything_else() -> None:
    chance = random.Random(1)
    good = status_bytes("message", delay(3, 4))
    for _ in range(5000):
        data = bytearray(good)
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(ValueError):
            read_status(bytes(data[: chance.randrange(len(data) + 1)]))


def test_the_bytes_are_those_of_the_class() -> None:
    rpc = pytest.importorskip("google.rpc.status_pb2")
    details = pytest.importorskip("google.rpc.error_details_pb2")
    info = details.RetryInfo()
    info.retry_delay.seconds, info.retry_delay.nanos = -7, 8
    message = rpc.Status(message="ü")
    message.details.add().Pack(info)
    assert status_bytes("ü", delay(-7, 8)) == message.SerializeToString()
