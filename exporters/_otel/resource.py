"""The resource of a rank: who it is to a backend, the same on every one of its spans."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid5

import orjson

from tracekit.exporters._otel import names
from tracekit.exporters._otel.spans import Items, OtelLink, clean
from tracekit.exporters._values import Value
from tracekit.model import Correction

__all__ = ["Resources", "given_resource", "instance_id"]

_NAMESPACE = UUID("6f1c4f4e-9a0b-5c1d-8a52-7d7b0a5f2c11")
_SERVICE = "tracekit"
_OF_HOST = ("host.name", "host.id", names.WORLD_SIZE, *names.SETTINGS.values())
"""What all ranks of a host say alike."""
_FACTS = ("clock", "environment", "otel_parent", "rank", "role")


@dataclass(slots=True)
class _Rank:
    identity: dict[str, Any] = field(default_factory=dict)
    role: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    domain: str = ""


class Resources:
    """The resources of an attempt's ranks, by what facts say of them.

    ``given`` are attributes by the user, which win over ours but for those that tell ranks apart;
    ``service.name`` among them names the service in place of the run's label. ``shift_ns`` is what
    was added to all times, ``corrections`` what put them on one clock.
    """

    def __init__(
        self,
        uid: str,
        label: str,
        attempt: int,
        given: Mapping[str, str] | None = None,
        shift_ns: int = 0,
        corrections: Mapping[int, Sequence[Correction]] | None = None,
    ) -> None:
        self._uid, self._label, self._attempt = uid, label, attempt
        self._given = dict(given or {})
        self._shift_ns = shift_ns
        self._corrections = corrections or {}
        self._ranks: dict[int, _Rank] = {}
        self._parents: list[dict[str, Any]] = []

    def learn(self, rank: int | None, name: str, text: str) -> None:
        """Take what a fact says; its value is JSON."""
        if rank is None or name not in _FACTS:
            return
        try:
            value = orjson.loads(text)
        except ValueError:
            return
        if isinstance(value, dict):
            of = self._ranks.setdefault(rank, _Rank())
            if name == "rank":
                of.identity = value
            elif name == "clock":
                of.domain = str(value.get("domain") or "")
            elif name == "role":
                of.role = value
            elif name == "otel_parent":
                self._parents.append(value)
            else:
                of.settings = value

    def host(self, rank: int) -> str:
        """The host of a rank, the same text for the same boot of the same machine."""
        identity = self._ranks.get(rank, _Rank()).identity
        return f"{identity.get('host', '')} {identity.get('boot_id', '')}"

    def domain(self, rank: int) -> str:
        """The clock of a rank; ranks with one clock can be compared."""
        if self._corrections:
            return "aligned"
        known = self._ranks.get(rank, _Rank())
        return str(known.domain or known.identity.get("clock_domain") or self.host(rank))

    def world_size(self, rank: int) -> int:
        """How many ranks there are, by the word of one of them; 0 where it said nothing."""
        size = self._ranks.get(rank, _Rank()).identity.get("world_size")
        return size if isinstance(size, int) else 0

    def parent_links(self) -> list[OtelLink]:
        """Links to what of the user was under way when the ranks began, each once."""
        found = {}
        for parent in self._parents:
            try:
                ids = bytes.fromhex(str(parent["trace_id"])), bytes.fromhex(str(parent["span_id"]))
            except (KeyError, ValueError):
                continue
            if (len(ids[0]), len(ids[1])) == (16, 8):
                found[ids] = OtelLink(*ids)
        return list(found.values())

    def of_run(self) -> Items:
        """The resource of what belongs to no rank."""
        return self._made({"service.instance.id": instance_id(self._uid, self._attempt, -1)})

    def of_host(self) -> Items:
        """The resource of what speaks for all ranks that are known, those of one host."""
        rank = min(self._ranks, default=-1)
        instance = instance_id(f"{self._uid}/{self.host(rank)}", self._attempt, -1)
        shared = {name: value for name, value in self.of(rank) if name in _OF_HOST}
        return self._made({**shared, "service.instance.id": instance})

    def of(self, rank: int) -> Items:
        """The resource of a rank."""
        known = self._ranks.get(rank, _Rank())
        identity = known.identity
        own: dict[str, Any] = {
            "service.instance.id": instance_id(self._uid, self._attempt, rank),
            "host.name": identity.get("host"),
            # Viewers that mend clocks leave spans alone whose host is one: this says which clock.
            "host.id": identity.get("boot_id"),
            "process.pid": identity.get("pid"),
            names.RANK: rank,
            names.WORLD_SIZE: identity.get("world_size"),
            "dl.local_rank": identity.get("local_rank"),
            names.CLOCK_DOMAIN: known.domain or identity.get("clock_domain"),
        }
        sizes = known.role.get("sizes")
        for axis, prefix in names.ROLES.items():
            own[f"{prefix}.rank"] = known.role.get(axis)
            own[f"{prefix}.size"] = sizes.get(axis) if isinstance(sizes, dict) else None
        corrected = self._corrections.get(rank)
        if corrected:
            own[names.CLOCK_OFFSET] = corrected[0].offset_ns
            own[names.CLOCK_ERROR] = round(max(one.error_ns for one in corrected))
        for variable, attribute in names.SETTINGS.items():
            own[attribute] = known.settings.get(variable)
        return self._made(own)

    def _made(self, own: Mapping[str, Any]) -> Items:
        found: dict[str, Value] = {
            "service.name": self._label or _SERVICE,
            names.RUN_ID: self._uid,
            names.ATTEMPT: self._attempt,
            **({names.TIME_SHIFT: self._shift_ns} if self._shift_ns else {}),
            **self._given,
            **{name: value for name, value in own.items() if _says_something(value)},
        }
        return tuple((name, clean(value)) for name, value in found.items())

    def learn_all(self, facts: Iterable[tuple[int | None, str, str]]) -> None:
        """Take many facts: rank, name, JSON."""
        for rank, name, text in facts:
            self.learn(rank, name, text)


def _says_something(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and value != ""


def instance_id(uid: str, attempt: int, rank: int) -> str:
    """The ``service.instance.id`` of a rank, -1 for the run: a UUID that every process derives."""
    return str(uuid5(_NAMESPACE, f"{uid}/{attempt}/{rank}"))


def given_resource(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's attributes: ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME``.

    A pair that cannot be read is left out, as OpenTelemetry's own packages do.
    """
    env = os.environ if environ is None else environ
    found: dict[str, str] = {}
    for pair in env.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        name, equals, value = pair.partition("=")
        if equals and name.strip():
            found[unquote(name.strip())] = unquote(value.strip())
    service = env.get("OTEL_SERVICE_NAME", "").strip()
    return {**found, "service.name": service} if service else found
