"""What a verdict is, which verdicts exist, and every word of them that people read."""

from tracekit.findings._finding import Certainty, Finding, Severity
from tracekit.findings._ids import IDS
from tracekit.findings._phrases import ranks_words, waiting_words
from tracekit.findings.words import Words, say, translator

__all__ = [
    "IDS",
    "Certainty",
    "Finding",
    "Severity",
    "Words",
    "ranks_words",
    "say",
    "translator",
    "waiting_words",
]
