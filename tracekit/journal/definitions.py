"""What the ids in records mean: the definitions of a head, as they grow."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracekit.journal.format import DEFINITION, Definition
from tracekit.model import Collective

__all__ = ["Definitions", "Fact", "Schema", "json_text"]


@dataclass(frozen=True, slots=True)
class Schema:
    """Keys of attributes and a letter for the type of each: i, f, b, s, n."""

    keys: tuple[str, ...]
    letters: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact as the rank recorded it; ``time_ns`` is monotonic, ``end`` where its bytes end."""

    name: str
    value: str
    time_ns: int
    source: str | None
    end: int


def json_text(value: Any) -> str:
    """A value as JSON that any reader takes: no NaN, no half of a surrogate pair."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except ValueError:
        return json_text(_finite(value))
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def clean(text: str) -> str:
    """A text that UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode()


@dataclass(slots=True)
class Definitions:
    """The tables of a head by id; ``read`` takes what was added since the last time."""

    identity: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    lanes: dict[int, str] = field(default_factory=dict)
    collectives: dict[int, Collective] = field(default_factory=dict)
    schemas: dict[int, Schema] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    """Texts of attributes, as JSON."""
    groups: dict[int, str] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    end: int = 0
    """Bytes taken so far."""
    damaged: int = 0
    """Definitions that could not be read."""

    def read(self, area: memoryview) -> None:
        """Take the definitions in ``area`` that lie behind those already taken."""
        while self.end + DEFINITION.size <= len(area):
            type_, id_, size = DEFINITION.unpack_from(area, self.end)
            start = self.end + DEFINITION.size
            if start + size > len(area):
                break
            self.end += DEFINITION.size + size + 7 & ~7
            try:
                self._take(type_, id_, json.loads(bytes(area[start : start + size])))
            except (ValueError, TypeError, KeyError, LookupError):
                self.damaged += 1

    def _take(self, type_: int, id_: int, value: Any) -> None:
        if type_ == Definition.NAME:
            self.names[id_] = clean(value)
        elif type_ == Definition.LANE:
            self.lanes[id_] = clean(value)
        elif type_ == Definition.STRING:
            self.strings[id_] = json_text(value)
        elif type_ == Definition.SCHEMA:
            keys, letters = value
            self.schemas[id_] = Schema(tuple(clean(str(key)) for key in keys), letters)
        elif type_ == Definition.COLLECTIVE:
            op, group, size, dtype, peer = value
            self.collectives[id_] = Collective(clean(op), clean(group), size, dtype, peer)
        elif type_ == Definition.GROUP:
            self.groups[id_] = clean(value)
        elif type_ == Definition.FACT:
            fact = Fact(
                clean(value["name"]),
                json_text(value["value"]),
                value["time_ns"],
                value["source"],
                self.end,
            )
            self.facts.append(fact)
        elif type_ == Definition.IDENTITY:
            self.identity = dict(value)
