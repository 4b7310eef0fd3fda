"""Replaced attributes that can be put back, and how a patched method knows the objects it is for.

Methods are patched on classes, never on instances: an instance keeps its class, its pickle and its
copies free of tracekit. The patched method looks its object up in a ``Watch``.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["Watch", "after_init", "patch", "patched"]

T = TypeVar("T")
Maker = Callable[[Callable[..., Any]], Callable[..., Any]]

_lock = threading.RLock()
_patches: dict[tuple[int, str], _Patch] = {}


class _Patch:
    """One attribute of a module or class that is replaced while somebody uses it."""

    def __init__(self, owner: Any, name: str, make: Maker) -> None:
        self.owner, self.name = owner, name
        self.own = name in vars(owner)
        self.before = vars(owner)[name] if self.own else None
        if isinstance(self.before, staticmethod):
            self.ours: Any = staticmethod(make(self.before.__func__))
        else:
            self.ours = make(getattr(owner, name) if self.own else _inherited(owner, name))
        self.users = 0
        setattr(owner, name, self.ours)

    def put_back(self) -> None:
        """Restore the attribute, unless somebody has wrapped ours meanwhile.

        Ours then stays below theirs and passes through: nothing it watches is left.
        """
        if vars(self.owner).get(self.name) is not self.ours:
            return
        if self.own:
            setattr(self.owner, self.name, self.before)
        else:
            delattr(self.owner, self.name)


def _inherited(owner: type, name: str) -> Callable[..., Any]:
    """An inherited method, looked up anew at each call: others may patch the base class later."""
    found = getattr(owner, name)

    @functools.wraps(found)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, self), name)(*args, **kwargs)

    return call


def patch(owner: Any, name: str, make: Maker) -> Callable[[], None]:
    """Replace ``owner.name`` by ``make(original)``; returns what ends this use of it.

    The same attribute is replaced once however many users it has, and put back with the last.
    Raises ``AttributeError`` or ``TypeError`` where it cannot be replaced.
    """
    key = (id(owner), name)
    with _lock:
        entry = _patches.get(key)
        if entry is None:
            entry = _patches[key] = _Patch(owner, name, make)
        entry.users += 1
    ended = False

    def end() -> None:
        nonlocal ended
        with _lock:
            if ended:
                return
            ended = True
            entry.users -= 1
            if not entry.users:
                del _patches[key]
                entry.put_back()

    return end


def after_init(made: Callable[[Any], None]) -> Maker:
    """A maker of patches of ``__init__``: afterwards ``made(self)``, which must not raise."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            made(self)

        return __init__

    return make


def patched() -> list[str]:
    """The attributes that are replaced at the moment."""
    with _lock:
        return sorted(f"{entry.owner.__name__}.{entry.name}" for entry in _patches.values())


class Watch(Generic[T]):
    """What belongs to certain objects, found by identity without keeping the objects alive."""

    def __init__(self) -> None:
        self.values: dict[int, T] = {}  # by id
        self._owners: dict[int, Any] = {}

    def get(self, owner: object) -> T | None:
        """What belongs to the object, or None."""
        return self.values.get(id(owner))

    def of(self, owner: Any, make: Callable[[Any], T]) -> T:
        """What belongs to the object; made of it when it is new."""
        value = self.values.get(id(owner))
        if value is None:
            value = make(owner)
            self.add(owner, value)
        return value

    def add(
        self, owner: object, value: T, gone: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Watch an object until the returned function is called or the object dies.

        ``gone`` is called when the object dies first.
        """
        key = id(owner)

        def died(_: object) -> None:
            self.values.pop(key, None)
            self._owners.pop(key, None)
            if gone is not None:
                gone()

        try:
            holder: Any = weakref.ref(owner, died)
        except TypeError:
            holder = owner  # no weak reference possible: kept until it is no longer watched
        self._owners[key] = holder
        self.values[key] = value

        def remove() -> None:
            if self._owners.get(key) is holder:
                del self._owners[key], self.values[key]

        return remove
