"""PyTorch: ``trace(model, optimizer=…, loader=…)`` records a training loop, rank by rank."""

from tracekit.adapters.torch._trace import Handle, trace

__all__ = ["Handle", "trace"]
