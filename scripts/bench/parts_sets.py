"""Parts of the report about sets of checkpoint files: mcrEngine's Tables III and IV and Figures 6 to 13."""

from bench import published_sets as published
from bench import svg
from bench.figures import grouped, named
from bench.markup import paper, paragraph, table


def table_3(found):
    lines = []
    for row in found["merging"]["rows"]["sets"]:
        lines.append([
            row["set"], row["files"], row["bytes"] / 1e6, f"[{row['smallest_bytes'] / 1e6:.2f}, {row['largest_bytes'] / 1e6:.2f}]",
            row["variables"], f"[{row['fewest_variables']}, {row['most_variables']}]", row["doubles"], row["floats"], row["other"],
        ])  # fmt: skip
    headings = ["set", "files", "MB", "MB of a file", "variables", "of a file", "doubles %", "floats %", "other %"]
    return table(headings, lines, "The sets measured here") + paper(published.TABLE_3, "Table III", published.APPLICATIONS)


def figure_6(found):
    drawn = []
    for name, rows in grouped(found["merging"]["rows"]["passes"], "set").items():
        passes = {words: {row["scheme"]: row[key] for row in rows} for words, key in (("one pass", "single"), ("two passes", "double"))}
        drawn.append(svg.bars(name, "", "ratio", passes))
    return "\n".join(drawn)


SCHEMES = ("Agnostic", "Agnostic-Block", "Aware", "Aware-Block")
USUAL_PIECE = 64 << 10


def over(rows, key):
    """The ratios of each scheme over the values of a key."""
    return {scheme: {row[key]: row["ratio"] for row in rows if row["scheme"] == scheme} for scheme in SCHEMES}


def figure_7(found):
    drawn = []
    for name, rows in grouped(found["merging"]["rows"]["merged"], "set").items():
        usual = [row for row in rows if row["piece_bytes"] in (None, USUAL_PIECE)]
        drawn.append(svg.lines(name, "files in a group", "ratio", over(usual, "group_size")))
    return "\n".join(drawn)


def figure_8(found):
    drawn = []
    for name, rows in grouped(found["merging"]["rows"]["merged"], "set").items():
        largest = max(row["group_size"] for row in rows)
        blocks = [row | {"KiB": row["piece_bytes"] >> 10} for row in rows if row["piece_bytes"] and row["group_size"] == largest]
        lines = {scheme: points for scheme, points in over(blocks, "KiB").items() if points}
        drawn.append(svg.lines(f"{name}, all files in one group", "piece, KiB", "ratio", lines))
    return "\n".join(drawn)


def figure_9(found):
    """Every set with every method; sets of one program in their order are a series."""
    drawn, lines = [], []
    rows = found["aggregate"]["rows"]["ratios"]
    methods = grouped(rows, "method")
    sets = list(grouped(rows, "set"))
    for method, of_method in methods.items():
        ratios = {row["set"]: row["ratio"] for row in of_method}
        lines.append([method, *[ratios.get(one) for one in sets]])
    shown = {method: {row["set"]: row["ratio"] for row in methods[method]} for method in published.SHOWN if method in methods}
    for start in range(0, len(sets), 4):
        few = sets[start : start + 4]
        drawn.append(svg.bars("", "", "ratio", {method: {one: points[one] for one in few} for method, points in shown.items()}))
    return "\n".join(drawn) + table(["ratio", *sets], lines)


def table_4(found):
    lines = []
    for name, rows in grouped(found["aggregate"]["rows"]["ratios"], "set").items():
        over_agnostic = [named(rows, method, key="method") for method in published.COMPARED]
        lines.append([name, *[row and row["over_agnostic"] for row in over_agnostic]])
    words = "Relative improvement over Agnostic, which is gzip -6 of all files one behind the other, in percent (equation 2)."
    ours = table(["set", *published.COMPARED], lines, "Here") + paragraph(words, "note")
    return ours + paper(published.TABLE_4, "Table IV", ("application", "", "Aware-Block", "Aware"))


STAGES = {
    "checkpoint": ("raw_write_seconds", "pack_seconds", "packed_write_seconds"),
    "restart": ("raw_read_seconds", "unpack_seconds", "packed_read_seconds"),
}


def figures_12_13(found):
    drawn, lines = [], []
    for row in found["aggregate"]["rows"]["end_to_end"]:
        line = [row["set"], row["sink_bytes_per_second"] / 1e6]
        for whole, alone, packed in STAGES.values():
            line += [row[whole], row[alone], row[packed], 100 * (1 - row[packed] / row[whole])]
        lines.append(line)
    for what, (whole, alone, packed) in STAGES.items():
        rows = found["aggregate"]["rows"]["end_to_end"]
        for start in range(0, len(rows), 4):
            kinds = {"as it is": whole, "packed": packed, "of that, processor": alone}
            few = rows[start : start + 4]
            drawn.append(svg.bars(f"{what}, ms", "", "ms", {
                kind: {row["set"]: 1000 * row[key] for row in few} for kind, key in kinds.items()}))  # fmt: skip
    headings = ["set", "sink MB/s"]
    for what in STAGES:
        headings += [f"{what} as it is, s", "packing alone" if what == "checkpoint" else "unpacking alone", "packed", "saved %"]
    words = (
        "The sink is a file system held to 2 MB/s a file, the share of a process of 15408 in 30 GB/s. Packing and writing overlap. "
        "What contention of many writers costs beyond their share does not show on one machine (Figures 10 and 11)."
    )
    return "\n".join(drawn) + table(headings, lines) + paragraph(words, "note") + paper(published.FIGURES_12_13, "section VII")
