"""How a verdict is told: to a person in a terminal, to a program as JSON."""

from tracekit.report._json import json, json_object
from tracekit.report._text import text

__all__ = ["json", "json_object", "text"]
