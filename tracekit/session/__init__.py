"""start() and stop(): the one place that joins recorder, journal, agent and adapters."""

from tracekit.session._identity import Options
from tracekit.session._session import Session
from tracekit.session._start import begin, current_session, start, stop

__all__ = ["Options", "Session", "begin", "current_session", "start", "stop"]
