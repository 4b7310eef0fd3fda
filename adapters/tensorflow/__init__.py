"""TensorFlow: ``TracekitCallback()`` for ``fit``; ``trace_strategy`` and ``trace_dataset`` for
loops of one's own."""

from tracekit.adapters.tensorflow._callback import TracekitCallback
from tracekit.adapters.tensorflow._data import trace_dataset
from tracekit.adapters.tensorflow._handle import Handle
from tracekit.adapters.tensorflow._strategy import trace_strategy

__all__ = ["Handle", "TracekitCallback", "trace_dataset", "trace_strategy"]
