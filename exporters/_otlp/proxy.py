"""Which proxy stands on the way to an endpoint: ``HTTP_PROXY``, ``HTTPS_PROXY``, ``NO_PROXY``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from tracekit.errors import UsageError

__all__ = ["find_proxy"]


def find_proxy(endpoint: str, environ: Mapping[str, str]) -> str | None:
    """The URL of the proxy to an endpoint, with its password if it has one; None: straight on.

    The small letters of a variable win, as with curl, and this machine needs no proxy. Raises
    ``UsageError``, one line that names the variable and does not repeat its value, where no such
    proxy can be.
    """
    url = urlsplit(endpoint)
    name, text = _first(environ, f"{url.scheme}_proxy")
    port = url.port or (443 if url.scheme == "https" else 80)
    if not text or _bypassed(url.hostname or "", port, _first(environ, "no_proxy")[1]):
        return None
    text = text if "://" in text else f"http://{text}"
    try:
        proxy = urlsplit(text)
        usable = bool(proxy.hostname) and proxy.port != 0 and text.isprintable()
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{name}: has no valid host and port")
    if proxy.scheme not in ("http", "https"):
        raise UsageError(f"{name}: its scheme is {proxy.scheme[:20]!r}, not http or https")
    return text


def _first(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    """The variable that is set, in small letters or in capitals, and its value."""
    for spelled in (name, name.upper()):
        text = environ.get(spelled, "").strip()
        if text:
            return spelled, text
    return name, ""


def _bypassed(host: str, port: int, exceptions: str) -> bool:
    """Whether a host is this one, or among comma-separated names, domains and networks."""
    host = host.lower()
    with suppress(ValueError):
        if ip_address(host).is_loopback:
            return True
    names = [piece.strip().lower() for piece in exceptions.split(",")]
    return host == "localhost" or any(_matches(host, port, name) for name in names)


def _matches(host: str, port: int, exception: str) -> bool:
    if exception == "*":
        return True
    try:
        return ip_address(host) in ip_network(exception, strict=False)
    except ValueError:  # a name on either side
        pass
    name, colon, number = exception.rpartition(":")
    if colon and number.isdecimal() and ":" not in name:
        if int(number) != port:
            return False
        exception = name
    domain = exception.removeprefix("*").lstrip(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))
