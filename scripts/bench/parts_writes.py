"""Parts of the report about throughput: the paper's Table 1 and Figures 2 to 6."""

from bench import paper as published
from bench import svg
from bench.figures import cpu_per_gigabyte, grouped, named, rate, ratio
from bench.markup import paper, paragraph, table


def table_1(found):
    """Time for 1 GB on a plain file, through FUSE to it, and on the mount that does nothing."""
    rows = found["writes"]["rows"]
    places = {
        "Local I/O": "plain file",
        "FUSE to local I/O": "FUSE to a local file",
        "/stdchk/null": "do-nothing mount",
    }
    local = named(rows, "plain file")
    lines = []
    for theirs, ours in places.items():
        seconds, deviation = published.TABLE_1[theirs]
        row = named(rows, ours)
        lines.append([
            theirs, seconds, deviation, published.TABLE_1["Local I/O"][0] / seconds,
            1000 / rate(row) if row else None, rate(row) if row else None, ratio(rate(row), rate(local)) if row else None,
        ])  # fmt: skip
    headings = [
        "",
        "paper: s for 1 GB",
        "its deviation",
        "speed of local",
        "here: s for 1 GB",
        "MB/s",
        "speed of local",
    ]
    return table(headings, lines, "The paper's Table 1, and the same here") + all_writes(rows)


def all_writes(rows):
    """Every row of the measure, since Table 1 has only three."""
    plain = rate(named(rows, "plain file"))
    lines = [
        [row["name"], size(row["block_bytes"]), rate(row), ratio(rate(row), plain), cpu_per_gigabyte(row)]
        for row in rows
    ]
    headings = ["", "writes of", "MB/s", "of the plain file", "CPU s/GB"]
    return table(headings, lines, "One file at a time, four benefactors, window 64 MiB")


def size(count):
    """Bytes in binary units."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):g} {unit}"
    return f"{count} B"


def sweep(rows, kind, key, scale=1):
    """Lines of rows whose name ends with `kind`, over a key."""
    chosen = [row for row in rows if row["name"].endswith(kind)]
    return {name: {row[key] // scale: rate(row) for row in group} for name, group in grouped(chosen, "name").items()}


def levels(found):
    """What a plain file and the do-nothing mount reach, to be drawn across."""
    rows = found.get("writes", {"rows": []})["rows"]
    wanted = (("plain file, fsync", "plain + fsync"), ("do-nothing mount", "do-nothing"))
    return [(short, rate(named(rows, name))) for name, short in wanted if named(rows, name)]


def figures_2_3(found):
    rows = found["stripe"]["rows"]
    drawn = []
    for number, kind, where in ((2, "OAB-early", published.FIGURE_2), (2, "OAB", ()), (3, "ASB", published.FIGURE_3)):
        lines = sweep(rows, kind, "benefactors")
        drawn.append(plot(f"{kind} over benefactors", "benefactors", lines, levels(found)))
        if where:
            drawn.append(paper(where, f"Figure {number} and its text"))
    return "\n".join(drawn) + ratios_of_stripe(found, rows)


def ratios_of_stripe(found, rows):
    """The best of each against a local disk, which is what can be compared with the paper."""
    plain = named(found.get("writes", {"rows": []})["rows"], "plain file, fsync")
    if not plain:
        return ""
    lines = [[name, max(points.values()), max(points.values()) / rate(plain)]
             for name, points in sweep(rows, "", "benefactors").items()]  # fmt: skip
    lines.append(["paper: sliding window, its OAB (here: OAB-early)", 110.0, 110 / published.LOCAL_MB_S])
    return table(["", "best, MB/s", "of a local disk's write + fsync"], lines)


def plot(title, x_label, lines, across=()):
    if not lines:
        return paragraph(f"{title}: no rows.", "note")
    return svg.lines(title, x_label, "MB/s", lines, across)


def by_window(found, kind):
    """Lines over the window in MiB, one for each number of benefactors and kind of rate."""
    lines = {}
    for row in found["window"]["rows"] + found.get("stripe", {"rows": []})["rows"]:
        count = row["benefactors"]
        if row["name"] == f"SW, {kind}" and count in {one["benefactors"] for one in found["window"]["rows"]}:
            lines.setdefault(f"{count} benefactors", {})[row["window_bytes"] >> 20] = rate(row)
    return lines


def figures_4_5(found):
    drawn = [
        plot(f"{kind} over the window", "window, MiB", by_window(found, kind)) for kind in ("OAB-early", "OAB", "ASB")
    ]
    return "\n".join(drawn) + paper(published.FIGURES_4_5, "Figures 4 and 5 and their text")


def figure_8(found):
    rows = found["machines"]["rows"]
    lines = {
        f"links of {row['link_mbit']} Mbit/s": dict(enumerate(row["mb_of_each_second"], 1)) for row in rows
    }
    shown = [{key: value for key, value in row.items() if key != "mb_of_each_second"} for row in rows]
    return (
        plot("What all clients write together", "seconds", lines)
        + table(list(shown[0]), [list(row.values()) for row in shown], "While all clients wrote")
        + paper(published.FIGURE_8, "Figure 8 and its text")
    )


def figure_6(found):
    rows = [row for row in found["window"]["rows"] if row["window_bytes"] == 512 << 20]
    lines = {name: {row["benefactors"]: rate(row) for row in group} for name, group in grouped(rows, "name").items()}
    return plot("A window of 512 MiB", "benefactors", lines) + paper(published.FIGURE_6, "Figure 6 and its text")


def repeats(found):
    lines = []
    for row in found["repeats"]["rows"]:
        stored = (
            sum(row["stored_bytes"]) / len(row["stored_bytes"]) / row["bytes"] * 100 if row["stored_bytes"] else None
        )
        lines.append([row["name"], rate(row), cpu_per_gigabyte(row), stored])
    return table(["", "MB/s", "CPU s/GB", "stored %"], lines)


def plain_rows(measure):
    """A part's content for rows that are transfers and nothing more."""

    return lambda found: transfers(found[measure]["rows"])


def transfers(rows):
    """A table of transfers."""
    lines = [[row["name"], size(row["bytes"]), rate(row), cpu_per_gigabyte(row),
              size(row["peak_memory_bytes"]) if row["peak_memory_bytes"] else None] for row in rows]  # fmt: skip
    return table(["", "bytes", "MB/s", "CPU s/GB", "peak memory"], lines)
