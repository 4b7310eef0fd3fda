"""The plug-ins by name. Built-in ones stand here, so that a checkout needs no installation;
entry points are for other people's packages. Nothing is imported to list them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

__all__ = ["BUILT_IN", "Plugin", "list_plugins"]


@dataclass(frozen=True, slots=True)
class Plugin:
    """An adapter or an exporter, and what it takes to import it."""

    shape: str
    """adapter or exporter"""
    name: str
    module: str
    purpose: str
    extra: str | None = None
    """What to install as ``tracekit-blackbox[extra]``."""
    needs: tuple[str, ...] = ()
    """The packages it imports."""
    origin: str = "tracekit"
    """The distribution it comes from."""

    @property
    def missing(self) -> list[str]:
        return [package for package in self.needs if not _is_there(package)]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "importable": not self.missing}


BUILT_IN = (
    Plugin(
        "adapter",
        "flight_recorder",
        "tracekit.adapters.flight_recorder",
        "reads dumps of PyTorch's Flight Recorder, pickle or JSON: tracekit analyze PATH",
    ),
    Plugin(
        "adapter",
        "huggingface",
        "tracekit.adapters.huggingface",
        "traces Hugging Face's Trainer: callbacks=[TracekitCallback()]",
        extra="huggingface",
        needs=("torch", "transformers"),
    ),
    Plugin(
        "adapter",
        "lightning",
        "tracekit.adapters.lightning",
        "traces Lightning's Trainer: callbacks=[TracekitCallback()]",
        extra="lightning",
        needs=("torch", "lightning"),
    ),
    Plugin(
        "adapter",
        "nccl_inspector",
        "tracekit.adapters.nccl_inspector",
        "reads what NCCL's Inspector measured: tracekit analyze PATH",
    ),
    Plugin(
        "adapter",
        "nccl_log",
        "tracekit.adapters.nccl_log",
        "reads NCCL's debug logs, of any launcher: tracekit analyze PATH",
    ),
    Plugin(
        "adapter",
        "nccl_ras",
        "tracekit.adapters.nccl_ras",
        "reads answers of NCCL's RAS, text and JSON: tracekit analyze PATH",
    ),
    Plugin(
        "adapter",
        "nccl_tests",
        "tracekit.adapters.nccl_tests",
        "reads what nccl-tests prints: tracekit analyze PATH",
    ),
    Plugin(
        "adapter",
        "opentelemetry",
        "tracekit.adapters.opentelemetry",
        "takes spans of any instrumentation: add_span_processor(TracekitSpanProcessor())",
        extra="otlp",
        needs=("opentelemetry.sdk",),
    ),
    Plugin(
        "adapter",
        "tensorflow",
        "tracekit.adapters.tensorflow",
        "traces TensorFlow training, live: TracekitCallback(), trace_strategy(), trace_dataset()",
        extra="tensorflow",
        needs=("tensorflow",),
    ),
    Plugin(
        "adapter",
        "text_logs",
        "tracekit.adapters.text_logs",
        "reads text logs of ranks, launchers, kernels and schedulers: tracekit analyze FILES",
    ),
    Plugin(
        "adapter",
        "torch",
        "tracekit.adapters.torch",
        "traces PyTorch training, live: trace(model, optimizer=, loader=)",
        extra="torch",
        needs=("torch",),
    ),
    Plugin(
        "adapter",
        "xplane",
        "tracekit.adapters.xplane",
        "reads profiles of TensorFlow and JAX, .xplane.pb: tracekit import PATH -o RUN",
    ),
    Plugin(
        "exporter",
        "chrome_trace",
        "tracekit.exporters.chrome_trace",
        "a timeline as JSON, for Perfetto, Chrome and others: tracekit export --to chrome",
    ),
    Plugin(
        "exporter",
        "live",
        "tracekit.exporters.live",
        "steps by OTLP while they happen: OTEL_EXPORTER_OTLP_ENDPOINT, or start(otlp=True)",
        extra="otlp",
        needs=("opentelemetry.proto", "urllib3"),
    ),
    Plugin(
        "exporter",
        "otel_metrics",
        "tracekit.exporters.otel_metrics",
        "step times, shares, waits and loss as metrics by OTLP, beside live",
        extra="otlp",
        needs=("opentelemetry.proto", "opentelemetry.sdk", "urllib3"),
    ),
    Plugin(
        "exporter",
        "otel_sdk",
        "tracekit.exporters.otel_sdk",
        "spans for any SpanExporter of OpenTelemetry's SDK: export(run, exporter)",
        extra="otlp",
        needs=("opentelemetry.sdk",),
    ),
    Plugin(
        "exporter",
        "otlp",
        "tracekit.exporters.otlp",
        "a step of all ranks as one trace: tracekit export --to otlp, or otlp-json for a file",
        extra="otlp",
        needs=("opentelemetry.proto", "urllib3"),
    ),
    Plugin(
        "exporter",
        "perfetto",
        "tracekit.exporters.perfetto",
        "a timeline in Perfetto's own format: tracekit export --to perfetto",
        extra="perfetto",
        needs=("perfetto",),
    ),
)
"""Sorted by shape and name; a test compares it with what is in the folders."""


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # what it is a part of is missing
        return False


def list_plugins() -> list[Plugin]:
    """The built-in plug-ins, then those that installed packages offer."""
    return [*BUILT_IN, *_offered("adapter"), *_offered("exporter")]


def _offered(shape: str) -> list[Plugin]:
    found = []
    for point in entry_points(group=f"tracekit.{shape}s"):
        origin = point.dist.name if point.dist is not None else "unknown"
        purpose = f"of another package: {point.value}"
        found.append(Plugin(shape, point.name, point.module, purpose, origin=origin))
    return sorted(found, key=lambda plugin: plugin.name)
