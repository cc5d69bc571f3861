"""HTML for the report: paragraphs and tables, everything escaped that is not marked as markup."""

import html


def paragraph(words, kind=""):
    return f'<p class="{kind}">{html.escape(words)}</p>' if kind else f"<p>{html.escape(words)}</p>"


def cell(value):
    """A number with three digits that mean something, text as it is, nothing as a dash."""
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        digits = next((digits for digits, least in enumerate((100, 10, 1)) if abs(value) >= least), 3)
        return f"{value:,.{digits}f}"
    return str(value) if getattr(value, "markup", False) else html.escape(str(value))


def table(headings, rows, caption="", kind=""):
    """A table; `kind` "paper" gives it the colour of what was taken from the paper."""
    lines = [f'<table class="{kind}">' if kind else "<table>"]
    if caption:
        lines.append(f"<caption>{html.escape(caption)}</caption>")
    kinds = [' class="words"' if holds_words(column) else "" for column in zip(*rows)] or [""] * len(headings)
    for tag, row in [("th", headings), *(("td", row) for row in rows)]:
        cells = "".join(f"<{tag}{kind}>{cell(value)}</{tag}>" for kind, value in zip(kinds, row))
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def holds_words(column):
    """Whether a column is read rather than compared, and so starts at the left."""
    if not all(isinstance(value, str) for value in column):
        return False
    return any(len(value) > 24 for value in column) or not any(value[:1].isdigit() for value in column)


def paper(rows, where, headings=("", "the paper says")):
    """What the paper says, in a table of its own colour."""
    return table(list(headings), [list(map(as_printed, row)) for row in rows], f"The paper, {where}", "paper")


def as_printed(value):
    """A number of the paper with the digits that it has there."""
    return f"{value:g}" if isinstance(value, float) else value
