"""Reads the profiles of TensorFlow and JAX (``.xplane.pb``) without either of them."""

from tracekit.adapters.xplane._importer import XPlaneImporter

__all__ = ["XPlaneImporter"]
