"""Whether the agent exports live: arguments win, then our variable, then OpenTelemetry's."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

import tracekit
from tracekit.errors import MissingDependency, UsageError
from tracekit.exporters._otlp import settings
from tracekit.session._live import live_rule

DEFAULT = "first=10,every=100,slow=2,checkpoints=1"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")


@pytest.mark.parametrize(
    ("asked", "told", "rule"),
    [
        (None, None, None),
        (False, "all", None),
        (None, "0", None),
        (None, "off", None),
        (True, None, DEFAULT),
        (True, "0", DEFAULT),
        (None, "1", DEFAULT),
        (None, "all", "first=10,every=1,slow=2,checkpoints=1"),
        ("first=3,slow=0", "all", "first=3,every=100,slow=0,checkpoints=1"),
    ],
)
def test_who_decides(asked: bool | str | None, told: str | None, rule: str | None) -> None:
    assert live_rule(asked, told) == rule


def test_an_endpoint_in_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    assert live_rule(None, None) == DEFAULT
    assert live_rule(False, None) is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert live_rule(None, None) is None
    assert live_rule(True, None) is None


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318", "has no scheme"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/json"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "no-value", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere.pem", "/nowhere.pem"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "OTEL_EXPORTER_OTLP_TIMEOUT"),
    ],
)
def test_what_cannot_be_meant_is_an_error_for_who_asked_and_a_remark_for_others(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    variable: str,
    value: str,
    words: str,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=words) as raised:
        tracekit.start(dir=str(tmp_path), otlp=True)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
    with caplog.at_level(logging.WARNING, "tracekit"):
        assert live_rule(None, None) is None
    assert words in caplog.text


@pytest.mark.parametrize("rule", ["often", "first=x", "every=-1", "slow=nan", "first=1,,every"])
def test_a_rule_that_is_none_is_named(rule: str) -> None:
    with pytest.raises(UsageError):
        live_rule(rule, None)


def test_without_the_extra_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, package: str | None = None) -> object:
        return None if name.startswith("opentelemetry") else find_spec(name, package)

    monkeypatch.setattr(settings, "find_spec", missing)
    with pytest.raises(MissingDependency, match=r"tracekit-blackbox\[otlp\]"):
        live_rule(True, None)
