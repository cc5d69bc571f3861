"""How the scripts of the benchmark end when something can't be done: one line that says what, and status 1."""

import contextlib
import sys


class Failure(Exception):
    """Something that keeps a script from going on, in words for its user."""


class Stopped(Exception):
    """A signal or a limit that ends a script in good order."""


@contextlib.contextmanager
def fail_with(script):
    """Turns a Failure, or having been stopped, into a message of `script` and status 1."""
    try:
        yield
    except (Failure, Stopped) as failure:
        print(f"{script}: {failure}", file=sys.stderr)
        sys.exit(1)
