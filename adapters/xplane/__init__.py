"""Reads the profiles of TensorFlow and JAX (``.xplane.pb``) without either of them."""

from tracekit.adapters.xplane._importer import XPlaneImporter
from tracekit.adapters.xplane._windows import Adopted, adopt

__all__ = ["Adopted", "XPlaneImporter", "adopt"]
