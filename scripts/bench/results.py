"""Results of a script in the form in which stdchk-bench writes its own: NAME.json, and a table for people."""

import datetime
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def machine():
    """What was measured on: figures without a machine mean nothing."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return {
        "cpu": field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": os.uname().release,
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def field(path, name):
    lines = Path(path).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def target(what, value, wanted, at_least=True):
    """A ratio that the project wants to reach."""
    met = value is not None and (value >= wanted if at_least else value <= wanted)
    return {"what": what, "value": value, "wanted": wanted, "met": met}


def write(folder, name, what, rows, targets):
    """Writes NAME.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {"measure": name, "what": what, "machine": machine(), "rows": rows, "targets": targets}
    (folder / f"{name}.json").write_text(json.dumps(written, indent=1) + "\n")


def table(headings, lines):
    """Columns for people: the first to the left, the others to the right."""
    cells = [headings, *[[shown(cell) for cell in line] for line in lines]]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headings))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))])
        for line in cells
    )


def shown(cell):
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 100 else f"{cell:.0f}"
    return str(cell)


def print_targets(targets):
    for one in targets:
        value = "-" if one["value"] is None else f"{one['value']:.3f}"
        print(f"{one['what']:64} {value:>8}   wanted {one['wanted']:>6.2f}   {'met' if one['met'] else 'MISSED'}")
