"""The console script `goodfleet`: the top layer, which mounts the planner's commands and turns errors into exit codes.

0 answered, 1 defect or broken environment, 2 bad input, 3 nothing meets the targets, 6 a given threshold is missed,
130 interrupted. A user's mistake is one message on stderr, without a traceback.
"""

from __future__ import annotations

import sys

from hardware_profiles.errors import InputError
from planner.cli import commands

__all__ = ["app"]


def app() -> None:
    """Run the command line of this process."""
    try:
        commands()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe has gone; nothing is wrong
        sys.stderr.close()
        sys.exit(0)
