"""Parts of the report about images: the paper's Tables 2 to 5 and Figure 7, and all peers."""

from bench import paper as published
from bench import svg
from bench.figures import cut_rate, grouped, mean, median, ratio, similarity
from bench.markup import as_printed, paper, paragraph, table


def table_2(found):
    lines = []
    for name, rows in grouped(found["similarity"]["rows"], "series").items():
        row = rows[0]
        zero = 100 - 100 * sum(row["non_zero_bytes"]) / sum(row["image_bytes"])
        size = mean(row["image_bytes"]) / 1e6
        lines.append([name, row["program"], row["interval_seconds"], len(row["image_bytes"]), size, zero])
    headings = ["series", "program", "interval s", "images", "average MB", "zero pages %"]
    theirs = ("application", "checkpoint", "interval min", "images", "average MB")
    return table(headings, lines, "The series measured here") + paper(published.TABLE_2, "Table 2", theirs)


TABLE_3_CUTTERS = {
    "FsCH 1 KB": "fsch:1KiB",
    "FsCH 256 KB": "fsch:256KiB",
    "FsCH 1 MB": "fsch:1MiB",
    "CbCH overlap": "cbch:m=20,k=14,p=1",
    "CbCH no-overlap, m = 20 B, k = 14 b": "cbch:m=20,k=14,p=20",
}


def of_cutter(rows, cutter):
    """`similarity % [MB/s]` as the paper prints it, or None."""
    row = next((row for row in rows if row["cutter"] == cutter), None)
    return f"{similarity(row)[0]:.1f} % [{cut_rate(row):,.0f}]" if row else None


def table_3(found):
    series = grouped(found["similarity"]["rows"], "series")
    headings = ["", "paper: BMS 1 min", "BLAST BLCR 5 min", "BLAST BLCR 15 min", *[f"here: {name}" for name in series]]
    lines = [
        [name, *[f"{percent:.1f} % [{rate:g}]" for percent, rate in published.TABLE_3[name]],
         *[of_cutter(rows, cutter) for rows in series.values()]]
        for name, cutter in TABLE_3_CUTTERS.items()
    ]  # fmt: skip
    return table(headings, lines, "Similarity to the image before, and MB/s in brackets: the paper's Table 3, and here")


def default_cutter(found):
    """The default cutter beside the fastcdc crate and fixed sizes."""
    drawn = []
    for name, rows in grouped(found["similarity"]["rows"], "series").items():
        lines = []
        for row in rows:
            if row["cutter"].startswith("cbch"):
                continue
            alone = None if row["cutter"].startswith("fsch") else cut_rate(row, naming=False)
            written, whole = sum(row["image_bytes"][1:]), sum(row["whole_zstd_bytes"])
            of_peer = next((other for other in rows if other["peer_of"] == row["cutter"]), None)
            faster = ratio(alone, cut_rate(of_peer, naming=False)) if of_peer else None
            lines.append([
                row["cutter"], alone, faster, cut_rate(row), *similarity(row),
                100 * sum(row["stored_bytes"]) / written, ratio(float(sum(row["stored_zstd_bytes"])), whole),
            ])  # fmt: skip
        headings = ["cutter", "cutting MB/s", "times fastcdc", "with names MB/s", "similar %", "non-zero %", "stored %",
                    "zstd / whole zstd"]  # fmt: skip
        drawn.append(table(headings, lines, name))
    words = (
        "MB/s on one core. Similar: bytes in pieces that the image before has; non-zero: of the bytes outside zero pages. Stored: "
        "bytes in new pieces; the last column has them packed and compressed, against each image compressed whole."
    )
    return "\n".join(drawn) + paragraph(words, "note")


TABLE_4_ROWS = (
    ("similarity", "similarity %"),
    ("rate", "MB/s"),
    ("average", "average KB"),
    ("shortest", "shortest KB"),
    ("longest", "longest KB"),
)


def table_4(found):
    """The whole grid for each series, the paper's values above ours."""
    drawn = []
    for name, rows in grouped(found["similarity"]["rows"], "series").items():
        cutters = {row["cutter"]: row for row in rows}
        lines = []
        for bits, theirs in published.TABLE_4.items():
            of_bits = [cutters.get(f"cbch:m={window},k={bits},p={window}") for window in published.WINDOWS]
            for key, label in TABLE_4_ROWS:
                lines.append([f"k = {bits}, {label}: paper", *map(as_printed, map(float, theirs[key]))])
                lines.append([f"k = {bits}, {label}: here", *[of_table_4(row, key) for row in of_bits]])
        # One of the grid belongs to Table 3 as well and says nothing about it.
        if sum(name.startswith("cbch:") and not name.endswith("p=1") for name in cutters) > 1:
            drawn.append(table(["", *[f"m = {window}" for window in published.WINDOWS]], lines, name))
    words = "The paper's trace is BLAST by BLCR at 5 minutes. It calls its average that of checkpoints; it must be that of chunks."
    missing = paragraph("The grid is measured at the full size: stdchk-bench --size full --only similarity.", "note")
    return "\n".join(drawn) + paragraph(words, "note") if drawn else missing


def of_table_4(row, key):
    if row is None:
        return None
    values = {
        "similarity": lambda: similarity(row)[0],
        "rate": lambda: cut_rate(row),
        "average": lambda: sum(row["image_bytes"]) / sum(row["pieces"]) / 1024,
        "shortest": lambda: mean(row["shortest_bytes"]) / 1024,
        "longest": lambda: mean(row["longest_bytes"]) / 1024,
    }
    return float(values[key]())


def image_rates(row, seconds="seconds"):
    """Median MB/s of the images after the first."""
    pairs = list(zip(row["image_bytes"], row[seconds]))[1:]
    return median([size / 1e6 / taken for size, taken in pairs])


def figure_7(found):
    """OAB and ASB over the window, with images and with unique data of the same size."""
    drawn = []
    default = {"cutter": "fsch:1MiB", "codec": "auto", "through": "mount"}
    rows = [row for row in found["images"]["rows"] if default.items() <= row.items()]
    for series, of_series in grouped(rows, "series").items():
        for close, kind in (("early", "OAB-early"), ("stored", "OAB"), ("durable", "ASB")):
            chosen = sorted((row for row in of_series if row["close"] == close), key=lambda row: row["window_bytes"])
            if chosen:
                lines = {
                    "images, FsCH": {row["window_bytes"] >> 20: image_rates(row) for row in chosen},
                    "unique data": {row["window_bytes"] >> 20: image_rates(row, "unique_seconds") for row in chosen},
                }
                drawn.append(svg.bars(f"{kind}, {series}", "window, MiB", "MB/s", lines))
    words = (
        "stdchk always names content by its hash, so the paper's no-FsCH has no counterpart. In its place stands unique data of "
        "the same size, of which nothing is found again."
    )
    return "\n".join(drawn) + paragraph(words, "note") + paper(published.FIGURE_7, "Figure 7 and its text")


def end_to_end(found):
    """All policies for all series."""
    drawn = []
    for name, rows in grouped(found["images"]["rows"], "series").items():
        lines = []
        for row in rows:
            written, stored = sum(row["image_bytes"][1:]), sum(row["stored_bytes"][1:])
            lines.append([
                row["cutter"], row["codec"], row["through"], row["close"], row["window_bytes"] >> 20,
                row["image_bytes"][0] / 1e6 / row["seconds"][0], image_rates(row), image_rates(row, "unique_seconds"),
                sum(row["cpu_seconds"][1:]) / (written / 1e9), 100 * row["stored_bytes"][0] / row["image_bytes"][0],
                100 * stored / written, ratio(float(stored), row["whole_zstd_bytes"]),
            ])  # fmt: skip
        headings = ["cutter", "codec", "through", "close", "window MiB", "first MB/s", "next MB/s", "unique data MB/s",
                    "CPU s/GB", "first stored %", "next stored %", "next / whole zstd"]  # fmt: skip
        drawn.append(table(headings, lines, name))
    return "\n".join(drawn)


def table_5(found):
    rows = found["blast"]["rows"]
    local, pool = rows
    kept = [row["stored_bytes"] / 1e6 for row in rows]
    ours = {
        "Total execution time (s)": (local["seconds"], pool["seconds"]),
        "Checkpointing time (s)": (local["checkpointing_seconds"], pool["checkpointing_seconds"]),
        "Data size (TB)": (kept[0] / 1e6, kept[1] / 1e6),
    }
    lines = []
    for name, (theirs_local, theirs_pool, better) in published.TABLE_5.items():
        here = ours[name]
        # As the paper has it, data are those of as many checkpoints as were made; runs may differ by one.
        improvement = f"{100 * (1 - here[1] / here[0]):.1f} %"
        shown = [f"{value * 1e6:,.0f} MB" for value in here] if "TB" in name else [float(value) for value in here]
        lines.append([name, f"{theirs_local:,}", f"{theirs_pool:,}", better, *shown, improvement])
    counts = f"Checkpoints made: {local['checkpoints']} to the local disk, {pool['checkpoints']} to stdchk. {local['program']}."
    headings = ["", "paper: local disk", "stdchk", "improvement", "here: local disk", "stdchk", "improvement"]
    return table(headings, lines, "The paper's Table 5, and here") + paragraph(counts, "note")


def peer_images(found):
    drawn = []
    for name, rows in grouped(found["peers-images"]["rows"], "series").items():
        lines = []
        for row in rows:
            if "refused" in row:
                lines.append([row["name"], *[None] * 5])
                continue
            sizes, stored = row["image_bytes"], row["stored_bytes"]
            lines.append([
                row["name"], sizes[0] / 1e6 / row["seconds"][0], image_rates(row), sum(row["cpu_seconds"]) / (sum(sizes) / 1e9),
                100 * stored[0] / sizes[0], 100 * sum(stored[1:]) / sum(sizes[1:]),
            ])  # fmt: skip
        headings = ["", "first MB/s", "next MB/s", "CPU s/GB", "first stored %", "next stored %"]
        drawn.append(table(headings, lines, name))
    return "\n".join(drawn) + configurations(found["peers-images"]["rows"])


def peer_files(found, measure="peers-files"):
    rows = found[measure]["rows"]
    lines, groups = [], {}
    for row in rows:
        if "refused" in row or not row["bytes"]:
            lines.append([row["name"], *[None] * 6])
            continue
        of_kind = {kind: row["bytes"] / 1e6 / median(row[f"{kind}_seconds"]) for kind in ("written", "synced", "read")}
        cpu = [median(row[f"{kind}_cpu_seconds"]) / (row["bytes"] / 1e9) for kind in of_kind]
        lines.append([row["name"], *of_kind.values(), *cpu])
        groups[row["name"]] = dict(zip(("written", "+ fsync", "read cold"), of_kind.values()))
    headings = ["", "written MB/s", "+ fsync MB/s", "read cold MB/s", "CPU s/GB: written", "+ fsync", "read cold"]
    drawn = svg.bars("One file", "", "MB/s", groups) if groups else ""
    return drawn + table(headings, lines) + small_files(rows) + configurations(rows)


def small_files(rows):
    """Files of 4 KiB, each durable before the next is begun."""
    lines = [
        [row["name"], *how.split(", "), median(kept["files_per_second"]), median(kept["median_ms"])]
        for row in rows
        for how, kept in row.get("small", {}).items()
    ]
    return table(["4 KiB files", "durable once", "processes", "files/s", "median ms"], lines) if lines else ""


def peer_codecs(found):
    drawn = []
    for name, rows in grouped(found["codecs"]["rows"], "set").items():
        lines = []
        for row in rows:
            if "refused" in row:
                lines.append([row["name"], row["of"], *[None] * 4])
                continue
            raw = row["raw_bytes"]
            speeds = [raw / 1e6 / max(row[f"{what}_cpu_seconds"], 1e-6) for what in ("pack", "unpack")]
            lines.append([row["name"], row["of"], row["stored_bytes"], raw / row["stored_bytes"], *speeds])
        drawn.append(table(["", "of", "bytes", "ratio", "pack MB/s", "unpack MB/s"], lines, name))
    return "\n".join(drawn) + configurations(found["codecs"]["rows"])


def configurations(rows):
    """How each was configured, and why one was not measured."""
    lines = [[row["name"], row["how"] + (f". Not measured: {row['refused']}" if "refused" in row else "")]
             for row in {row["name"]: row for row in rows}.values()]  # fmt: skip
    return table(["", "configured as"], lines)
