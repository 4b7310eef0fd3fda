"""start() and stop(): the one place that joins recorder, journal, agent and adapters."""

from tracekit.session._session import Session, current_session, start, stop

__all__ = ["Session", "current_session", "start", "stop"]
