"""What the standard environment says about metrics, beside where they go."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from tracekit.errors import MissingDependency, UsageError
from tracekit.exporters._otlp.settings import Settings, read_settings

__all__ = ["MetricSettings", "read_metric_settings"]

_TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
_TEMPORALITIES = ("cumulative", "delta", "lowmemory")
_LONGEST_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class MetricSettings:
    """Where metrics go, how often, and how they add up."""

    otlp: Settings
    interval_s: float = 10.0
    """Between two exports. OpenTelemetry's own default is 60 s, too long to watch a training."""
    timeout_s: float = 30.0
    """Of one export with all its tries."""
    temporality: str = "cumulative"
    """``cumulative``, ``delta`` or ``lowmemory``: what counters and histograms start from."""


def read_metric_settings(environ: Mapping[str, str] | None = None) -> MetricSettings:
    """Read ``OTEL_EXPORTER_OTLP_*`` and ``OTEL_METRIC_EXPORT_*``.

    Raises ``UsageError``, one line that names the variable, where something cannot be meant as
    given, and ``MissingDependency`` where a package is missing.
    """
    env = os.environ if environ is None else environ
    for module, package in (
        ("opentelemetry.sdk.metrics", "opentelemetry-sdk"),
        (
            "opentelemetry.exporter.otlp.proto.common.metrics_encoder",
            "opentelemetry-exporter-otlp-proto-common",
        ),
    ):
        if not _is_installed(module):
            raise MissingDependency(package, "otlp")
    temporality = env.get(_TEMPORALITY, "").strip().lower() or _TEMPORALITIES[0]
    if temporality not in _TEMPORALITIES:
        raise UsageError(
            f"{_TEMPORALITY}: {temporality[:40]!r} is not {', '.join(_TEMPORALITIES[:-1])}"
            f" or {_TEMPORALITIES[-1]}"
        )
    return MetricSettings(
        read_settings("metrics", env),
        _seconds(env, "OTEL_METRIC_EXPORT_INTERVAL", 10.0),
        _seconds(env, "OTEL_METRIC_EXPORT_TIMEOUT", 30.0),
        temporality,
    )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # of a parent
        return False


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"\+?0*[1-9][0-9]*", text):
        raise UsageError(f"{name}: {text[:40]!r} is not a number of milliseconds above 0")
    return min(int(text.lstrip("+0")[:12]), _LONGEST_MS) / 1e3
