"""OTLP over HTTP, bodies in protobuf: one connection that is kept, and a limit to every wait.

A socket's timeout starts anew with every byte, and looking up a name has none. So a request is
made in a thread of its own, and whoever sent it waits for no longer than it said: then the
connection is cut, which also ends that thread.
"""

from __future__ import annotations

import gzip
import http.client
import re
import socket
import ssl
import time
import zlib
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from threading import Event, Lock, Thread
from urllib.parse import unquote, urljoin, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, ProtocolError

from tracekit.exporters._otlp.answer import (
    LARGEST_ANSWER,
    LONGEST_PAUSE_S,
    Answer,
    bounded,
    late,
    reader,
    too_large,
    too_long,
    words,
)
from tracekit.exporters._otlp.settings import Settings, Signal, tls_context
from tracekit.exporters._otlp.status import read_status
from tracekit.exporters._otlp.version import USER_AGENT

__all__ = ["HttpClient"]

_RETRIED = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
_TUNNEL = re.compile(r"^Tunnel connection failed: (\d{3})")
_PIECE = 1 << 16
_CLOSED = Answer(False, message="the client was closed", retry=True)
_BUSY = Answer(False, message="an earlier request has not ended", retry=True)


class HttpClient:
    """A ``Client`` for http/protobuf.

    Raises ``MissingDependency``, and ``OSError`` where a certificate vanished since the settings
    were read.
    """

    def __init__(self, settings: Settings, signal: Signal) -> None:
        self._settings = settings
        # Keys are put into the query too.
        self._secrets = (*settings.headers.values(), settings.endpoint.partition("?")[2])
        self._read = reader(signal, self._secrets)
        self._headers = {
            **settings.headers,
            "accept-encoding": "identity",
            "content-type": "application/x-protobuf",
            "user-agent": USER_AGENT,
        }
        if settings.compression == "gzip":
            self._headers["content-encoding"] = "gzip"
        self._wire = _Wire()
        self._manager = _manager(settings, self._wire)
        self._turn = Lock()
        self._latest = _Attempt()
        self._latest.ended.set()
        self._closed = False

    def send(self, request: bytes, timeout_s: float | None = None) -> Answer:
        """Try once, for no longer than the timeout in all; never raises."""
        limit = bounded(self._settings.timeout_s if timeout_s is None else timeout_s)
        end = time.monotonic() + limit
        refusal = too_large(request)
        if refusal is not None:
            return refusal
        if self._closed:
            return _CLOSED
        if not limit or not self._turn.acquire(timeout=limit):
            return late(limit)
        try:
            # A thread that hangs in the look-up of a name cannot be ended, so there is only one.
            if not self._latest.ended.wait(end - time.monotonic()):
                return _BUSY
            return self._try(request, end) or (_CLOSED if self._closed else late(limit))
        except Exception as error:
            return Answer(False, message=words(f"not sent: {error}", self._secrets))
        finally:
            self._turn.release()

    def close(self) -> None:
        """Cut the connection; a request on its way gets its answer at once: it may be retried."""
        self._closed = True
        self._wire.cut()
        self._latest.known.set()
        self._manager.clear()

    def _try(self, request: bytes, end: float) -> Answer | None:
        attempt = self._latest = _Attempt()
        self._wire.mend()
        if self._closed:
            attempt.ended.set()
            return _CLOSED
        worker = Thread(
            target=self._work, args=(attempt, request, end), name="tracekit-otlp", daemon=True
        )
        try:
            worker.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._work(attempt, request, end)
        try:
            attempt.known.wait(end - time.monotonic())
            return attempt.answer
        finally:
            if not attempt.ended.is_set():
                self._wire.cut()

    def _work(self, attempt: _Attempt, request: bytes, end: float) -> None:
        try:
            try:
                answer: Answer | None = self._post(attempt, request, end)
            except Exception as error:
                answer = attempt.answer
                if answer is None and not _is_late(error):
                    answer = self._failure(error)
            # What comes out of a cut connection says nothing about the server.
            if not self._wire.is_cut:
                attempt.answer = answer
        finally:
            attempt.ended.set()
            attempt.known.set()

    def _post(self, attempt: _Attempt, request: bytes, end: float) -> Answer:
        gzipped = self._settings.compression == "gzip"
        body = gzip.compress(request, 6, mtime=0) if gzipped else request
        response = self._manager.urlopen(
            "POST",
            self._settings.endpoint,
            body=body,
            headers=self._headers,
            redirect=False,
            retries=False,
            timeout=urllib3.Timeout(total=max(end - time.monotonic(), 1e-3)),
            preload_content=False,
            decode_content=False,
        )
        whole = False
        try:
            good = 200 <= response.status < 300
            if not good:
                # The status alone decides: this counts if the rest of it never comes.
                attempt.answer = self._refusal(response, b"")
            content, whole = _content(response)
            if not good:
                return self._refusal(response, content)
            if not whole:
                return too_long()
            kind = response.headers.get("content-type", "")
            return self._read(_decoded(response, content), "json" in kind.lower())
        finally:
            if not whole:
                response.close()
            response.release_conn()

    def _refusal(self, response: urllib3.BaseHTTPResponse, content: bytes) -> Answer:
        status = response.status
        head = f"HTTP {status} {response.reason or ''}".rstrip()
        if 300 <= status < 400 and "location" in response.headers:
            where = _host(self._settings.endpoint, response.headers["location"])
            return Answer(False, message=words(f"{head}: redirected to {where}, not followed"))
        said = _said(response, _decoded(response, content))
        return Answer(
            False,
            message=words(f"{head}: {said}" if said else head, self._secrets),
            retry=status in _RETRIED,
            after_s=_after_s(response.headers.get("retry-after")) if status in _RETRIED else None,
        )

    def _failure(self, error: Exception) -> Answer:
        """What an error of the connection means."""
        cause = _innermost(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            said, retry = f"the server's certificate: {cause.verify_message}", False
        elif isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            said, retry = "the connection ended during TLS", True
        elif isinstance(cause, ssl.SSLError):
            said, retry = f"TLS: {cause.reason or cause}", False
        elif isinstance(cause, http.client.IncompleteRead):
            said, retry = "the connection ended in the middle of the answer", True
        elif isinstance(cause, OSError):
            said = f"{cause.strerror or cause}"
            tunnel = _TUNNEL.search(said)
            retry = tunnel is None or int(tunnel[1]) in _RETRIED
        elif isinstance(cause, http.client.HTTPException):
            said, retry = "the server does not speak HTTP", False
        else:
            said = str(cause)
            retry = isinstance(cause, (ProtocolError, urllib3.exceptions.TimeoutError))
        through = "the proxy: " if isinstance(error, urllib3.exceptions.ProxyError) else ""
        return Answer(False, message=words(through + said, self._secrets), retry=retry)


def _is_late(error: Exception) -> bool:
    """Whether a socket's own timeout ended it, which ends with the request's time: whoever waits
    for it may learn of either first. The system's has a number."""
    cause = _innermost(error)
    if isinstance(cause, OSError):
        return isinstance(cause, TimeoutError) and cause.errno is None
    return isinstance(cause, urllib3.exceptions.TimeoutError)


class _Attempt:
    """One request on its way."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.known = Event()
        """Nobody waits for it any longer."""
        self.ended = Event()
        """Its thread is done with the connection."""


class _Wire:
    """The one connection of a client, which another thread may cut."""

    def __init__(self) -> None:
        self._connection: HTTPConnection | None = None
        self.is_cut = False

    def mend(self) -> None:
        self.is_cut = False

    def cut(self) -> None:
        """End every wait on the connection; the thread that uses it closes it."""
        self.is_cut = True
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            # Not SSLSocket's own: what is sent during it would go out in plain text.
            with suppress(OSError, TypeError):  # closed meanwhile, or TLS within TLS
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def begin(self, connection: HTTPConnection) -> None:
        self._connection = connection
        self.check()

    def check(self) -> None:
        if self.is_cut:
            raise ConnectionAbortedError("nobody waits for the answer any longer")


def _manager(settings: Settings, wire: _Wire) -> urllib3.PoolManager:
    """What makes connections, which are known to the wire, straight or through a proxy."""

    class Plain(HTTPConnection):
        def connect(self) -> None:
            wire.begin(self)
            super().connect()
            wire.check()

    class Secure(HTTPSConnection):
        def connect(self) -> None:
            wire.begin(self)
            super().connect()
            wire.check()

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    context = tls_context(settings) if settings.secure else None
    manager: urllib3.PoolManager
    if settings.proxy is None:
        manager = urllib3.PoolManager(maxsize=1, ssl_context=context)
    else:
        proxy = urlsplit(settings.proxy)
        user = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=user if len(user) > 1 else None)
        host = proxy.netloc.rpartition("@")[2]
        manager = urllib3.ProxyManager(
            f"{proxy.scheme}://{host}", proxy_headers=headers, maxsize=1, ssl_context=context
        )
    manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
    return manager


def _content(response: urllib3.BaseHTTPResponse) -> tuple[bytes, bool]:
    """The body as it was sent, and whether it is whole."""
    pieces: list[bytes] = []
    room = LARGEST_ANSWER + 1
    while room > 0:
        piece = response.read(min(room, _PIECE), decode_content=False)
        if not piece:
            return b"".join(pieces), True
        pieces.append(piece)
        room -= len(piece)
    return b"".join(pieces), False


def _decoded(response: urllib3.BaseHTTPResponse, content: bytes) -> bytes:
    """The body; some servers compress it though they were asked not to."""
    if response.headers.get("content-encoding", "").lower() != "gzip":
        return content
    try:
        return zlib.decompressobj(31).decompress(content, LARGEST_ANSWER)
    except zlib.error:
        return content


def _said(response: urllib3.BaseHTTPResponse, content: bytes) -> str:
    """The words in the body of a refusal: a google.rpc.Status, or any text."""
    if "protobuf" in response.headers.get("content-type", ""):
        try:
            return read_status(content).message
        except ValueError:
            return ""
    return content[:_PIECE].decode("utf-8", "replace")


def _host(endpoint: str, location: str) -> str:
    """Where a redirect leads, without what could be a secret."""
    try:
        target = urlsplit(urljoin(endpoint, location))
        port = f":{target.port}" if target.port else ""
    except ValueError:
        return "what is no URL"
    return f"{target.scheme}://{target.hostname}{port}"


def _after_s(text: str | None) -> float | None:
    """What Retry-After says, in seconds: a number or a date."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_PAUSE_S)
    try:
        date = parsedate_to_datetime(text)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=timezone.utc)
    seconds = (date - datetime.now(timezone.utc)).total_seconds()
    return min(max(seconds, 0.0), LONGEST_PAUSE_S)


def _innermost(error: BaseException) -> BaseException:
    """What urllib3 wrapped: it keeps it among the arguments or as the cause."""
    while isinstance(error, HTTPError):
        nested = next((part for part in error.args if isinstance(part, BaseException)), None)
        nested = nested or error.__cause__
        if nested is None:
            break
        error = nested
    return error
