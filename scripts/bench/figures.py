"""Figures from the rows of results: medians, rates, shares."""

import statistics


def median(values):
    return statistics.median(values) if values else None


def rate(row, seconds="seconds"):
    """Median rate of a row, MB/s."""
    middle = median(row[seconds])
    return row["bytes"] / 1e6 / middle if middle else None


def cpu_per_gigabyte(row, seconds="cpu_seconds"):
    middle = median(row[seconds])
    return None if middle is None else middle / (row["bytes"] / 1e9)


def ratio(one, other):
    return one / other if one is not None and other else None


def mean(values):
    return sum(values) / len(values) if values else None


def named(rows, name, key="name"):
    """The first row of this name, or None."""
    return next((row for row in rows if row[key] == name), None)


def grouped(rows, key):
    """Rows by the value of a key, in their order."""
    groups = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def similarity(row):
    """Mean share of an image found in the one before, percent; the second value is outside zero pages."""

    def percent(parts, wholes):
        return mean([100 * part / max(whole, 1) for part, whole in zip(parts, wholes)])

    return (
        percent(row["found_bytes"], row["image_bytes"][1:]),
        percent(row["found_non_zero_bytes"], row["non_zero_bytes"][1:]),
    )


def cut_rate(row, naming=True):
    """Median MB/s of cutting on one core, with the naming of the pieces if asked for."""
    pairs = zip(row["image_bytes"], row["cut_seconds"], row["name_seconds"])
    return median([size / 1e6 / (cut + naming * name) for size, cut, name in pairs])
