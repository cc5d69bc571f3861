"""The report: its parts in their order, and how a part that was not measured is shown.

Relies on `parts` for the content of each part. A part is a heading, a sentence, the measures that it needs with the command
that makes them, and a function from the results to HTML.
"""

import html

from bench import parts
from bench.markup import paragraph, table

STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.7em; } h2 { margin-top: 2.2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: 0.8em 0; font-size: 0.92em; }
th, td { padding: 0.2em 0.7em; border-bottom: 1px solid #e5e5e5; text-align: right; }
th:first-child, td:first-child, .words { text-align: left; }
th { border-bottom: 2px solid #999; vertical-align: bottom; }
.met { color: #15803d; } .missed { color: #b91c1c; font-weight: bold; }
.paper { background: #f5f1e6; } .note { color: #555; font-size: 0.92em; }
caption { text-align: left; font-weight: bold; padding: 0.3em 0; }
svg { max-width: 100%; height: auto; display: inline-block; }
"""


def page(found):
    """The whole page for these results, by measure."""
    body = [head(found), goals(found)]
    used = set()
    for part in parts.ALL:
        used.update(part.needs)
        body.append(section(part, found))
    body += [section(parts.other(name), found) for name in found if name not in used]
    title = "<title>stdchk, measured</title>"
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8">{title}<style>{STYLE}</style>\n' + "\n".join(body)


def head(found):
    """What was measured on, and when; one line for each machine and commit."""
    runs = {}
    for name, one in found.items():
        machine = one["machine"]
        said = (
            f"{machine['cores']} x {machine['cpu']}, {machine['memory_bytes'] / 2**30:.1f} GiB memory, "
            f"Linux {machine['kernel']}, commit {machine['commit'] or 'unknown'}, size {one.get('size', '-')}"
        )
        runs.setdefault(said, []).append((machine["date"], name))
    rows = []
    for said, measures in runs.items():
        dates = sorted(date for date, _ in measures)
        rows.append([said, f"{dates[0][:16]} to {dates[-1][:16]}", ", ".join(name for _, name in measures)])
    tiny = any(one.get("size") == "tiny" for one in found.values())
    warning = paragraph(
        "Some of these were taken at the tiny size, which shows that things run and nothing more.", "missed"
    )
    words = (
        "MB are 10^6 bytes. OAB-early: close() returns while data still drain, the paper's OAB. OAB: close() returns once all "
        "is stored at benefactors. ASB: once all is durable there and committed. The paper's figures come from machines of "
        "2007 with Gigabit Ethernet, these from one machine with all processes on it; what can be compared is ratios."
    )
    return "<h1>stdchk, measured</h1>" + table(["machine", "from, to (UTC)", "measures"], rows) + (
        warning if tiny else "") + paragraph(words, "note")  # fmt: skip


def goals(found):
    """All goals of all measures, the missed ones first."""
    targets = [(one, name) for name, result in found.items() for one in result.get("targets", [])]
    if not targets:
        return ""
    missed = [entry for entry in targets if not entry[0]["met"]]
    rows = []
    for one, name in sorted(targets, key=lambda entry: entry[0]["met"]):
        value = "not measured" if one["value"] is None else f"{one['value']:.3f}"
        verdict = '<span class="met">met</span>' if one["met"] else '<span class="missed">missed</span>'
        rows.append([f"{name}: {one['what']}", value, f"{one['wanted']:g}", Verdict(verdict)])
    summary = f"{len(targets) - len(missed)} of {len(targets)} goals were met."
    return "<h2>Goals</h2>" + paragraph(summary) + table(["", "measured", "wanted", ""], rows)


class Verdict(str):
    """HTML that a table takes as it is."""

    markup = True


def section(part, found):
    """One part of the page."""
    lines = [f"<h2>{html.escape(part.title)}</h2>", paragraph(part.what)]
    missing = [name for name in part.needs if name not in found]
    if missing:
        lines.append(paragraph(f"Not measured ({', '.join(missing)}). To measure it: {part.command}", "missed"))
    else:
        lines.append(part.show(found))
        lines.append(paragraph(f"Measured by: {part.command}", "note"))
    return "\n".join(lines)
