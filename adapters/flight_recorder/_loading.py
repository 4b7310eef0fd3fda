"""From a file to plain values: dictionaries, lists, texts and numbers, and never anything else.

A pickle is a program. This one may not name a class, so none is imported, called or made, and it
gets no more memory than a dump of its size can need.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import orjson

__all__ = ["Refused", "is_called_dump", "load", "looks_like_dump"]

_HEAD = 8192
"""Bytes from the beginning of JSON in which the keys of a dump stand."""

_LARGEST = 512 << 20
_PER_BYTE = 96
"""Bytes of objects that a byte of a pickle can ask for: an empty dictionary takes one byte."""
_SPARE = 128 << 20
_JSON = re.compile(
    rb'"(entries|pg_status|pg_config|collective_seq_id|profiling_name|nccl_comm_state)"'
)
_OTHER_JSON = re.compile(rb'"(schemaVersion|traceEvents|distributedInfo|deviceProperties)"')
_NAME = re.compile(r"(trace_rank|_?dump|flight_recorder|fr_trace)\w*?_?\d+$")


class Refused(Exception):
    """Why a file is not used, in words for people."""


def looks_like_dump(head: bytes) -> bool:
    """Whether a file can be a dump, by its first bytes.

    Every pickle can: one that is something else is named as such.
    """
    if head[:1] == b"\x80":
        return len(head) > 2 and 2 <= head[1] <= 5
    text = head[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n")
    return text[:1] in (b"{", b"[") and bool(_JSON.search(text)) and not _OTHER_JSON.search(text)


def is_called_dump(path: Path) -> bool:
    """Whether a file has such a name as dumps get."""
    return bool(_NAME.search(path.name))


def load(path: Path) -> Any:
    """The value in a file; raises ``Refused`` for what is not a readable pickle or JSON."""
    try:
        size = path.stat().st_size
        if not size:
            raise Refused("the file is empty")
        if size > _LARGEST:
            raise Refused(f"{size >> 20} MiB are too many for a dump")
        with path.open("rb") as file, _memory(_SPARE + _PER_BYTE * size):
            if file.peek(1)[:1] == b"\x80":
                return _Plain(file).load()
            return orjson.loads(file.read())
    except Refused:
        raise
    except OSError as error:
        raise Refused(error.strerror or str(error)) from error
    except MemoryError as error:
        raise Refused("asks for more memory than a dump of its size can need") from error
    except RecursionError as error:
        raise Refused("nested too deeply") from error
    except EOFError as error:
        raise Refused("the file is cut") from error
    except orjson.JSONDecodeError as error:
        raise Refused(f"cut or not JSON: {error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        cut = "truncated" in str(error) or "ran out" in str(error)
        said = "the file is cut" if cut else f"a damaged pickle: {type(error).__name__}: {error}"
        raise Refused(said[:200]) from error


class _Plain(pickle.Unpickler):
    """Makes what needs no class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise Refused(
            f"a pickle that loads {module}.{name}: a dump needs no class, nothing was run"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise Refused("a pickle with references to elsewhere, not a dump")


@contextlib.contextmanager
def _memory(more: int) -> Iterator[None]:
    """Let the process grow by so many bytes and no further, where the system holds it to that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + more
        if soft != resource.RLIM_INFINITY:
            limit = min(limit, soft)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
