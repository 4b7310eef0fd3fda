"""``python -m tracekit.agent``: how a session starts the agent of its node."""

import sys

from tracekit.agent import main

sys.exit(main())
