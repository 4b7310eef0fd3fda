"""Sends requests by OTLP until a server has them: whoever exports needs this module alone."""

from __future__ import annotations

import random
from collections.abc import Callable

from tracekit.errors import MissingDependency
from tracekit.exporters._otlp.answer import Answer, Client
from tracekit.exporters._otlp.settings import Settings, Signal

__all__ = ["Answer", "Client", "connect", "deliver"]

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_NAP_S = 0.2
"""Between two looks at whether to give up."""


def connect(settings: Settings, signal: Signal) -> Client:
    """A client for one signal; nothing is sent and no name is looked up before the first request.

    Raises ``MissingDependency`` without the extra of the protocol, and ``OSError`` where a
    certificate vanished since the settings were read.
    """
    if settings.protocol == "grpc":
        from tracekit.exporters._otlp.grpc_client import GrpcClient

        return GrpcClient(settings, signal)
    try:
        from tracekit.exporters._otlp.http_client import HttpClient
    except ImportError as error:
        raise MissingDependency("urllib3", "otlp") from error
    return HttpClient(settings, signal)


def deliver(
    client: Client,
    request: bytes,
    give_up: Callable[[], bool],
    sleep: Callable[[float], None],
) -> Answer:
    """Send until the request is accepted, refused for good, or ``give_up()``.

    Between tries it sleeps 1 to 30 s, longer each time and never the same for two senders, and
    no less than the server asked for; ``give_up`` is asked several times a second meanwhile. A
    try that is on its way ends when another thread closes the client.
    """
    answer = Answer(False, message="given up before the first try", retry=True)
    pause = _SHORTEST_PAUSE_S
    while not give_up():
        answer = client.send(request)
        if answer.accepted or not answer.retry:
            break
        pause = min(random.uniform(_SHORTEST_PAUSE_S, 3 * pause), _LONGEST_PAUSE_S)
        asked = (answer.after_s or 0) * random.uniform(1, 1.1)
        _rest(max(pause, asked), give_up, sleep)
    return answer


def _rest(seconds: float, give_up: Callable[[], bool], sleep: Callable[[float], None]) -> None:
    while seconds > 0 and not give_up():
        nap = min(seconds, _NAP_S)
        sleep(nap)
        seconds -= nap
