"""The node's helper process: converts, ships, watches; never part of the job."""

from tracekit.agent._agent import Agent, main
from tracekit.agent._options import AgentOptions

__all__ = ["Agent", "AgentOptions", "main"]
