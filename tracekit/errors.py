"""Every error tracekit raises on purpose.

    TracekitError
    ├── UsageError           wrong arguments or options; exit code 2
    ├── InputError           a path that cannot be read or is not what it should be; exit code 2
    │   ├── FormatError      a file of a known kind whose content is damaged
    │   └── VersionError     a file written by a newer tracekit
    └── MissingDependency    an optional package is not installed; the message says what to type

None of them ever reaches the job that is traced: the recorder and the adapters count and say once.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "FormatError",
    "InputError",
    "MissingDependency",
    "TracekitError",
    "UsageError",
    "VersionError",
]


class TracekitError(Exception):
    """The root of the tree; ``exit_code`` is what the command line returns for it."""

    exit_code = 2


class UsageError(TracekitError):
    """An argument or an option that cannot be meant as given."""


class InputError(TracekitError):
    """A file or folder that cannot be used; the message is ``path: reason``."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = Path(path)
        self.reason = reason


class FormatError(InputError):
    """A file of a known kind whose content is cut or damaged."""


class VersionError(InputError):
    """A file written by a newer version of tracekit."""


class MissingDependency(TracekitError):
    """An optional package is missing; names the exact line that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed: pip install 'tracekit-blackbox[{extra}]'"
            f" (from a checkout: pip install '.[{extra}]')"
        )
        self.package = package
        self.extra = extra
