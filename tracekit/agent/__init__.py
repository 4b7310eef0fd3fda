"""The node's helper process: converts, ships, watches; never part of the job."""

from tracekit.agent._agent import Agent, AgentOptions, main

__all__ = ["Agent", "AgentOptions", "main"]
