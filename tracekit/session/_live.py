"""Whether, and which steps, the node's agent exports live; checked before training starts."""

from __future__ import annotations

from tracekit.errors import MissingDependency, TracekitError
from tracekit.recorder import say_once

__all__ = ["live_rule"]

_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def live_rule(asked: bool | str | None, told: str | None) -> str | None:
    """The rule by which steps are exported, ``none`` for metrics alone; None: nothing is.

    ``asked`` is the argument of ``start``, ``told`` the variable ``TRACEKIT_OTLP``; where neither
    says anything, the standard environment of OpenTelemetry decides. Raises ``UsageError`` or
    ``MissingDependency`` for what an argument asks for in vain; the environment, which may be meant
    for others, is only told of.
    """
    if asked is False or (asked is None and told is not None and told.lower() in _OFF):
        return None
    from tracekit.exporters._live.sampling import NO_TRACES, Rule
    from tracekit.exporters._otlp.settings import asked_for, exporter_of, read_settings

    if asked is None and told is None and not asked_for():
        return None
    with_traces, with_metrics = (exporter_of(it) == "otlp" for it in ("traces", "metrics"))
    if with_metrics:
        with_metrics = _metrics_can_be_sent(asked is not None)
    if not with_traces:
        return NO_TRACES if with_metrics else None
    try:
        text = asked if isinstance(asked, str) else told or ""
        rule = Rule.parse("" if text.lower() in (*_ON, *_OFF) else text)
        read_settings("traces")
    except TracekitError as error:
        if asked is not None:
            raise
        say_once(f"no live export: {error}")
        return None
    return rule.text()


def _metrics_can_be_sent(raises: bool) -> bool:
    """Whether the environment of metrics is right; packages that are missing are only told of."""
    from tracekit.exporters._metrics.settings import read_metric_settings

    try:
        read_metric_settings()
    except TracekitError as error:
        if raises and not isinstance(error, MissingDependency):
            raise
        say_once(f"no live metrics: {error}")
        return False
    return True
