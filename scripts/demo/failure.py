"""The one error of the demonstration: what was being done, what went wrong and what to do next, for people."""


class Failure(Exception):
    """Ends the demonstration; its text is all that the user sees, so it says everything."""


def tail(path, lines=15):
    """The last lines of a text file, for a message; empty if there is no such file."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
