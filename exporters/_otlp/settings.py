"""What the standard environment says about where OTLP goes and how: the one place that reads it.

The names, the defaults and who wins over whom are OpenTelemetry's. A value that cannot be meant as
given ends with one line that names its variable; what may be a secret is never repeated in it.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from tracekit.errors import MissingDependency, UsageError
from tracekit.exporters._otlp.proxy import find_proxy

__all__ = ["Settings", "Signal", "asked_for", "exporter_of", "read_settings", "tls_context"]

Signal = Literal["traces", "metrics"]

_PREFIX = "OTEL_EXPORTER_OTLP_"
_PROTOCOLS = ("http/protobuf", "grpc")
_COMPRESSIONS = ("gzip", "none")
_PORTS = {"http": 80, "https": 443, "": 4317}
"""Where gRPC goes without a port; without a scheme there is no default but OTLP's own."""
_LONGEST_MS = 24 * 3_600_000
_HEADER_NAME = {
    "http/protobuf": re.compile(r"[!#$%&'*+.^_`|~\w-]+", re.ASCII),
    "grpc": re.compile(r"(?!grpc-)[\w.-]+(?<!-bin)", re.ASCII),
}
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_OWN_HEADERS = {
    *("accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
    *("expect", "te", "transfer-encoding", "upgrade", "user-agent"),
}
"""Ours, whatever others who read the same variable make of theirs."""
_HOST = re.compile(r"[\w.-]+|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%\w+)?", re.ASCII)
_URL = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where one signal goes and how."""

    endpoint: str
    """The full URL of the signal; with gRPC ``host:port``."""
    protocol: str = "http/protobuf"
    """``http/protobuf`` or ``grpc``."""
    secure: bool = False
    """Whether TLS is spoken."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request; lower-case names. Values are secrets."""
    timeout_s: float = 10.0
    """Of one request, in seconds, from the name look-up to the last byte of the answer."""
    compression: str = "none"
    """``gzip`` or ``none``."""
    certificate: Path | None = None
    """The authorities to trust instead of the system's."""
    client_key: Path | None = None
    client_certificate: Path | None = None
    """Who we are; may hold the key too."""
    proxy: str | None = field(default=None, repr=False)
    """The URL of the proxy to go through, with its password if it has one. HTTP only: gRPC reads
    its own variables."""

    @property
    def target(self) -> str:
        """The endpoint as it may be shown: without a query, in which keys are sometimes put."""
        return self.endpoint.partition("?")[0]


class _Given(NamedTuple):
    """A setting that somebody made, and where."""

    name: str
    text: str
    general: bool
    """Not for this signal alone."""


class _Lookup:
    """Finds who decides a setting: an argument, the signal's variable, the general variable."""

    def __init__(
        self, signal: Signal, environ: Mapping[str, str], arguments: Mapping[str, str | None]
    ) -> None:
        self._signal, self._environ, self._arguments = signal, environ, arguments

    def find(self, setting: str) -> _Given | None:
        """The setting that counts; an empty one is none."""
        argument = (self._arguments.get(setting) or "").strip()
        if argument:
            return _Given(setting.lower(), argument, True)
        for name, general in (
            (f"{_PREFIX}{self._signal.upper()}_{setting}", False),
            (f"{_PREFIX}{setting}", True),
        ):
            text = self._environ.get(name, "").strip()
            if text:
                return _Given(name, text, general)
        return None

    def choice(self, setting: str, choices: tuple[str, ...], default: str) -> str:
        """One of these words."""
        given = self.find(setting)
        if given is None:
            return default
        if given.text.lower() not in choices:
            known = " or ".join(choices)
            raise UsageError(f"{given.name}: {given.text[:40]!r} is not supported, only {known}")
        return given.text.lower()


def read_settings(
    signal: Signal,
    environ: Mapping[str, str] | None = None,
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Settings:
    """Read where a signal goes from the arguments, then ``OTEL_EXPORTER_OTLP_*``.

    An ``endpoint`` given here is like the general variable, one for all signals: the signal's
    path is added unless the endpoint ends in it. ``headers`` replace those of the environment.

    Raises ``UsageError``, one line that names the variable, where something cannot be meant as
    given, and ``MissingDependency`` where the protocol needs what is not installed.
    """
    env = os.environ if environ is None else environ
    look = _Lookup(signal, env, {"ENDPOINT": endpoint, "PROTOCOL": protocol})
    chosen = look.choice("PROTOCOL", _PROTOCOLS, _PROTOCOLS[0])
    _check_installed(chosen)
    if chosen == "grpc":
        where, secure = _grpc_endpoint(look)
    else:
        where, secure = _http_endpoint(look, signal)
    settings = Settings(
        endpoint=where,
        protocol=chosen,
        secure=secure,
        headers=_headers(look, chosen, headers),
        timeout_s=_timeout_s(look),
        compression=look.choice("COMPRESSION", _COMPRESSIONS, "none"),
        certificate=_path(look, "CERTIFICATE"),
        client_key=_path(look, "CLIENT_KEY"),
        client_certificate=_path(look, "CLIENT_CERTIFICATE"),
        proxy=find_proxy(where, env) if chosen != "grpc" else None,
    )
    _check_certificates(look, settings)
    return settings


def exporter_of(
    signal: Signal, environ: Mapping[str, str] | None = None
) -> Literal["otlp", "none"]:
    """Whether the environment lets a signal go out by OTLP; it does where it says nothing."""
    env = os.environ if environ is None else environ
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "none"
    return "otlp" if "otlp" in (_exporters(signal, env) or ["otlp"]) else "none"


def asked_for(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the standard environment alone asks for OTLP: an endpoint, or an exporter by name."""
    env = os.environ if environ is None else environ
    signals: tuple[Signal, ...] = ("traces", "metrics")
    return any(
        exporter_of(signal, env) == "otlp"
        and (_Lookup(signal, env, {}).find("ENDPOINT") or _exporters(signal, env))
        for signal in signals
    )


def tls_context(settings: Settings) -> ssl.SSLContext:
    """What a TLS connection of these settings trusts and shows.

    Raises ``OSError``, of which ``ssl.SSLError`` is one, where a file cannot be used.
    """
    context = ssl.create_default_context(cafile=settings.certificate)
    if settings.client_certificate is not None:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(settings.client_certificate, settings.client_key, password="")
    return context


def _exporters(signal: Signal, env: Mapping[str, str]) -> list[str]:
    words = env.get(f"OTEL_{signal.upper()}_EXPORTER", "").split(",")
    return [word.strip().lower() for word in words if word.strip()]


def _check_installed(protocol: str) -> None:
    needed = [
        ("opentelemetry.proto", "opentelemetry-proto", "otlp"),
        ("grpc", "grpcio", "otlp-grpc") if protocol == "grpc" else ("urllib3", "urllib3", "otlp"),
    ]
    for module, package, extra in needed:
        try:
            found = find_spec(module) is not None
        except ImportError:  # of the parent
            found = False
        if not found:
            raise MissingDependency(package, extra)


def _http_endpoint(look: _Lookup, signal: Signal) -> tuple[str, bool]:
    given = look.find("ENDPOINT")
    path = f"/v1/{signal}"
    if given is None:
        return f"http://localhost:4318{path}", False
    if "://" not in given.text:
        raise UsageError(f"{given.name}: {_shown(given)} has no scheme, such as http://")
    url = _split(given)
    if given.general:
        base = url.path.rstrip("/")
        ends = given.name == "endpoint" and base.endswith(path)
        url = url._replace(path=base if ends else base + path)
    return url._replace(path=url.path or "/", fragment="").geturl(), url.scheme == "https"


def _grpc_endpoint(look: _Lookup) -> tuple[str, bool]:
    given = look.find("ENDPOINT")
    if given is None:
        return "localhost:4317", False
    schemeless = "://" not in given.text
    url = _split(given._replace(text=f"//{given.text}") if schemeless else given)
    if url.path not in ("", "/") or url.query:
        raise UsageError(f"{given.name}: {_shown(given)} has a path, and gRPC has none")
    insecure = look.find("INSECURE")
    plain = url.scheme == "http"
    if schemeless:
        plain = insecure is not None and insecure.text.lower() == "true"
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{host}:{url.port or _PORTS[url.scheme]}", not plain


def _split(given: _Given) -> SplitResult:
    """The parts of a URL that can be used.

    Raises ``UsageError``.
    """
    if not _URL.fullmatch(given.text):
        raise UsageError(f"{given.name}: has a character that a URL cannot have")
    try:
        url = urlsplit(given.text)
        port = url.port
    except ValueError:
        raise UsageError(f"{given.name}: {_shown(given)} has no valid host and port") from None
    if url.scheme not in _PORTS:
        raise UsageError(f"{given.name}: its scheme is {url.scheme[:20]!r}, not http or https")
    if "@" in url.netloc:
        raise UsageError(f"{given.name}: has a user or a password; they belong into a header")
    host = _HOST.fullmatch(url.hostname or "")
    if not host or port == 0 or url.netloc.endswith(":"):
        raise UsageError(f"{given.name}: {_shown(given)} has no valid host and port")
    return url


def _shown(given: _Given) -> str:
    """An endpoint without what could be a secret."""
    bare = re.sub(r"(://|^).*@", r"\1…@", given.text.removeprefix("//"))
    return repr(re.split("[?#]", bare)[0][:100])


def _headers(look: _Lookup, protocol: str, argument: Mapping[str, str] | None) -> Mapping[str, str]:
    found: dict[str, str] = {}
    if argument:
        name, pairs = "headers", list(argument.items())
    else:
        given = look.find("HEADERS")
        if given is None:
            return found
        name, pairs = given.name, _pairs(given)
    for key, value in pairs:
        # The text before an equals sign is shown only when it looks like a name.
        if not _HEADER_NAME[protocol].fullmatch(key.lower()):
            raise UsageError(f"{name}: the name of a header cannot be sent with {protocol}")
        if not _HEADER_VALUE.fullmatch(value):
            raise UsageError(f"{name}: the value of {key!r} has a character no header can have")
        if key.lower() not in _OWN_HEADERS:
            found[key.lower()] = value
    return found


def _pairs(given: _Given) -> list[tuple[str, str]]:
    pairs = []
    for number, piece in enumerate(given.text.split(","), 1):
        name, equals, value = piece.partition("=")
        if equals:
            pairs.append((unquote(name).strip(), unquote(value).strip(" \t")))
        elif piece.strip():
            raise UsageError(f"{given.name}: header {number} has no equals sign: name=value")
    return pairs


def _timeout_s(look: _Lookup) -> float:
    given = look.find("TIMEOUT")
    if given is None:
        return 10.0
    if not re.fullmatch(r"\+?0*[1-9][0-9]*", given.text):
        raise UsageError(
            f"{given.name}: {given.text[:40]!r} is not a number of milliseconds above 0"
        )
    # Long before float() or a lock has trouble with it; nothing waits for more than a day.
    digits = given.text.lstrip("+0")
    return min(int(digits[:12]), _LONGEST_MS) / 1e3


def _path(look: _Lookup, setting: str) -> Path | None:
    given = look.find(setting)
    return None if given is None else Path(given.text)


def _check_certificates(look: _Lookup, settings: Settings) -> None:
    """See now whether the files load, so that it is not found out in the middle of a run."""
    authority, key, own = (
        look.find(name) for name in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
    )
    if key and not own:
        raise UsageError(f"{key.name}: needs {key.name.replace('KEY', 'CERTIFICATE')} too")
    for given in filter(None, (authority, key, own)):
        _check_readable(given)
    if authority:
        try:
            ssl.create_default_context(cafile=authority.text)
        except OSError as error:
            raise UsageError(
                f"{authority.name}: {authority.text!r} holds no certificate"
            ) from error
    if own:
        try:
            tls_context(settings)
        except OSError as error:
            raise UsageError(f"{(key or own).name}: {_unfit(own, key, error)}") from error


def _check_readable(given: _Given) -> None:
    try:
        with open(given.text, "rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise UsageError(f"{given.name}: {given.text!r}: {reason}") from error


def _unfit(own: _Given, key: _Given | None, error: OSError) -> str:
    """Why OpenSSL does not take a certificate and a key."""
    try:
        ssl.create_default_context().load_verify_locations(cafile=own.text)
    except OSError:
        return f"{own.name} {own.text!r} holds no certificate"
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"the key does not belong to the certificate {own.text!r}"
    return f"{(key or own).text!r} holds no key, or one with a password"
