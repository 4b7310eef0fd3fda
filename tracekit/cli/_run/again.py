"""What a script is started with that starts itself once more as another rank: ``tracekit run``.

It is run by its path, since tracekit may be where the new process would not find it.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    package = str(Path(__file__).resolve().parents[3])
    sys.path[0] = package
    from tracekit.cli import main

    sys.exit(main(["run", *sys.argv[1:]]))
