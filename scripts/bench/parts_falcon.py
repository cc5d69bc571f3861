"""Parts of the report about FALCON's evaluation: its tables, Figures 3 to 13, and the peers of an erasure code."""

from bench import paper_falcon as published
from bench import svg
from bench.figures import mean, median, rate
from bench.markup import paper, paragraph, table
from bench.parts_images import peer_files


def testbed(found, part):
    return found[f"testbed-{part}"]["rows"]


def seconds(row, kind):
    values = row[f"{kind}_seconds"]
    return median(values) if values else None


def over(rows, kind, label, title):
    """A plot of seconds over what is varied, a line for each scheme."""
    lines = {}
    for row in rows:
        if (value := seconds(row, kind)) is not None:
            lines.setdefault(row["scheme"], {})[row["over"]] = value
    return svg.lines(title, label, "seconds", lines)


def times(rows, label):
    lines = [[row["scheme"], row["over"], seconds(row, "store"), seconds(row, "recover")] for row in rows]
    return table(["", label, "store, s", "recover, s"], lines)


def figure_6(found):
    bed = testbed(found, "clients")
    text = (
        f"{bed['hosts']} hosts on links of 100 Mbit/s, the last one behind a line of {bed['dsl_mbit']} Mbit/s; images of "
        f"{bed['image_bytes'] / 1e6:g} MB that shrink to {100 * bed['shrinks_to']:.1f} %."
    )
    rows = bed["figure_6"]
    return (
        paragraph(text)
        + over(rows, "store", "clients", "Storing at once")
        + times(rows, "clients")
        + paper(published.FIGURE_6, "Figure 6 and its text")
    )


def figure_7(found):
    rows = testbed(found, "hosts")["figure_7"]
    label = "unavailable hosts"
    return (
        over(rows, "store", label, "Storing without some hosts")
        + times(rows, label)
        + paper(published.FIGURE_7, "Figure 7 and its text")
    )


def figure_8(found):
    rows = testbed(found, "hosts")["figure_8"]
    return times(rows, "Mbit/s left") + paper(published.FIGURE_8, "Figure 8 and its text")


def figure_9(found):
    bed = testbed(found, "hosts")
    return (
        times(bed["recovery"], "hosts")
        + over(bed["figure_9"], "recover", "loaded hosts", "Recovery beside loaded hosts")
        + times(bed["figure_9"], "loaded hosts")
        + paper(published.FIGURE_9, "Figure 9 and its text")
    )


def figure_10(found):
    return times(testbed(found, "phases")["figure_10"], "") + paper(published.FIGURE_10, "Figure 10 and its text")


def figures_4_5(found):
    headings = ["image", "MB", "shrinks to, %", "the paper's MB", "shrinks to, %", "compress", "code", "send", "store",
                "dedicated", "fetch", "decode", "decompress", "recover", "dedicated"]  # fmt: skip
    lines = []
    for row in testbed(found, "phases")["figures_4_5"]:
        whole, shrunk, _ = published.TABLE_1[row["image"]]
        lines.append([row["image"], row["bytes"] / 1e6, 100 * row["encoded_bytes"] / row["bytes"], whole, 100 * shrunk / whole,
                      *(row[f"{phase}_seconds"] for phase in ("compress", "code", "send", "store", "dedicated_store", "fetch",
                                                              "decode", "decompress", "recover", "dedicated_recover"))])  # fmt: skip
    return table(headings, lines, "Seconds") + paper(published.FIGURES_4_5, "Figures 4 and 5 and their text")


def links(found):
    rows = testbed(found, "links")
    return table(list(rows[0]), [list(row.values()) for row in rows])


def figures_11_13(found):
    lines = []
    for row in found["coding"]["rows"]["by_threads"]:
        whole, of_each, shrunk, shrunk_of_each = published.TABLE_3[row["image"]]
        most = [max(row[f"{what}_of_threads"]) / 1e6 for what in ("plain", "encoded")]
        theirs = (whole, shrunk) if row["threads"] == 1 else (of_each, max(shrunk_of_each))
        phases = [row[f"{phase}_seconds"] for phase in ("compress", "code", "decode", "decompress")]
        lines.append([row["image"], row["threads"], *most, *theirs, *phases])
    headings = ["image", "threads", "MB a thread compresses", "MB it codes", "the paper's, by 1 or 4: MB compressed",
                "MB coded", "compress, s", "code, s", "decode, s", "decompress, s"]  # fmt: skip
    return table(headings, lines) + paper(published.FIGURES_11_13, "Figures 11 to 13 and their text")


def coding(found):
    rows = found["coding"]["rows"]
    lines = [[row["name"], rate(row), median(row["cpu_seconds"]) / (row["bytes"] / 1e9)] for row in rows["rows"]]
    cost = rows["cpu_per_gb"]
    text = f"10^9 bytes take {cost['coding']:.2f} CPU seconds to code, and {cost['hashing']:.2f} for the hashes of the fragments."
    return table(["", "MB/s", "CPU s/GB"], lines) + paragraph(text)


def figure_3(found):
    made = found["makespan"]["rows"]
    rows = [[row["image"], row["scheme"], row["work_hours"], mean(row["makespan_hours"]), row["evictions"],
             median(row["recovery_seconds"])] for row in made["jobs"]]  # fmt: skip
    headings = ["image", "checkpoints go to", "work, h", "makespan, h", "evictions", "recovery, s"]
    evictions = paragraph(f"Evictions are drawn from {made['evictions_from']}.")
    return evictions + table(headings, rows) + paper(published.FIGURE_3, "Figure 3, Table 2 and their text")


def peers_coded(found):
    rows = found["peers-coded"]["rows"]
    lines = [[row["name"], row["rebuilt_bytes"] / 1e6, row["rebuild_seconds"]] for row in rows if "rebuild_seconds" in row]
    rebuilt = table(["a server's worth made anew", "MB", "seconds"], lines) if lines else ""
    return rebuilt + peer_files(found, "peers-coded")
