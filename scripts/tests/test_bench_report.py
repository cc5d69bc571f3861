"""The report: every part appears, with its figures or with the words that it was not measured; nothing is made up."""

import contextlib
import html
import io
import json
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path
from unittest import mock

import script

report = script.load("bench-report")
page = report.page
parts = page.parts
svg = sys.modules["bench.svg"]
published = sys.modules["bench.paper"]

MACHINE = {
    "cpu": "Abacus",
    "cores": 2,
    "memory_bytes": 8 << 30,
    "kernel": "6",
    "commit": "abc",
    "date": "2026-01-02T03:04:05",
}


def result(measure, rows, targets=()):
    return {"measure": measure, "what": "", "size": "small", "machine": MACHINE, "rows": rows, "targets": list(targets)}


def transfer(name, seconds, benefactors=4, window=64 << 20):
    """A row of stdchk-bench: 10^9 bytes in these seconds."""
    return {"name": name, "benefactors": benefactors, "window_bytes": window, "block_bytes": 1 << 20, "bytes": 10**9,
            "seconds": [seconds], "cpu_seconds": [1.5], "stored_bytes": [], "peak_memory_bytes": None}  # fmt: skip


def similarity(cutter, found, peer_of=None, cut_seconds=1.0):
    return {"series": "s", "program": "p", "interval_seconds": 10, "cutter": cutter, "peer_of": peer_of,
            "image_bytes": [10**8] * 2, "non_zero_bytes": [5 * 10**7] * 2, "cut_seconds": [cut_seconds] * 2,
            "name_seconds": [1.0] * 2, "pieces": [1000] * 2, "shortest_bytes": [1024] * 2, "longest_bytes": [4096] * 2,
            "found_bytes": [found], "found_non_zero_bytes": [10**7], "stored_bytes": [10**7],
            "stored_zstd_bytes": [10**6], "whole_zstd_bytes": [10**7]}  # fmt: skip


def images(**changes):
    row = {"series": "s", "cutter": "fsch:1MiB", "codec": "auto", "close": "stored", "through": "mount",
           "window_bytes": 64 << 20, "image_bytes": [10**8] * 2, "seconds": [1.0, 0.5], "cpu_seconds": [0.2, 0.1],
           "stored_bytes": [10**8, 10**7], "unique_seconds": [1.0, 1.0], "whole_zstd_bytes": 10**8}  # fmt: skip
    return row | changes


BLAST = [
    {"name": name, "how": "h", "program": "blastn", "seconds": 100.0, "checkpointing_seconds": 20.0, "checkpoints": 3,
     "written_bytes": 3 * 10**8, "stored_bytes": stored}
    for name, stored in (("local disk", 3 * 10**8), ("stdchk", 6 * 10**7))
]  # fmt: skip

CODEC = {"set": "s", "name": "pcodec", "how": "h", "of": "concatenation", "raw_bytes": 3_000_000, "stored_bytes": 1_000_000,
         "pack_cpu_seconds": 0.01, "unpack_cpu_seconds": 0.005}  # fmt: skip
MERGING = {
    "sets": [{"set": "s", "files": 2, "bytes": 4_000_000, "smallest_bytes": 1_500_000, "largest_bytes": 2_500_000, "variables": 7,
              "fewest_variables": 3, "most_variables": 4, "doubles": 75.0, "floats": 25.0, "other": 0.0}],
    "passes": [{"set": "s", "scheme": "Aware", "single": 1.25, "double": 1.5}],
    "merged": [{"set": "s", "scheme": scheme, "group_size": size, "piece_bytes": piece, "ratio": 1.5 * size}
               for scheme, piece in (("Aware", None), ("Aware-Block", 64 << 10), ("Aware-Block", 4 << 10)) for size in (1, 2)],
}  # fmt: skip
AGGREGATE = {
    "ratios": [{"set": "s", "method": method, "raw_bytes": 100, "stored_bytes": 50, "ratio": 2.0, "over_agnostic": more}
               for method, more in (("Agnostic: gzip -6", 0.0), ("stdchk pack, default", 25.0))],
    "end_to_end": [{"set": "s", "sink_bytes_per_second": 16_000_000, "raw_write_seconds": 2.0, "raw_read_seconds": 1.0,
                    "packed_write_seconds": 0.5, "packed_read_seconds": 0.25, "pack_seconds": 0.1, "unpack_seconds": 0.05}],
}  # fmt: skip
TIMED = [{"scheme": scheme, "over": over, "store_seconds": [2.0 * over], "recover_seconds": [1.0]}
         for scheme in ("falcon", "dedicated server") for over in (1, 2)]  # fmt: skip
TESTBED = {
    "hosts": 12, "dsl_mbit": 2, "image_bytes": 10**8, "shrinks_to": 0.306,
    **dict.fromkeys(("figure_6", "figure_7", "figure_8", "recovery", "figure_9", "figure_10"), TIMED),
    "figures_4_5": [{"image": "mcf", "bytes": 1677 * 10**6, "encoded_bytes": 241 * 10**6} | {
        f"{phase}_seconds": 1.5 for phase in ("compress", "code", "send", "store", "dedicated_store", "fetch", "decode",
                                              "decompress", "recover", "dedicated_recover")}],
}  # fmt: skip
PEER_FILE = {"name": "stdchk, OAB", "how": "so and so", "bytes": 10**9} | {
    f"{kind}_{what}": [2.0] for kind in ("written", "synced", "read") for what in ("seconds", "cpu_seconds")
}
REFUSED = {"name": "MooseFS", "how": "this way", "refused": "no <port> is free"}


def everything():
    """Results of every measure that a part of the page needs."""
    sweep = [transfer(f"SW, {kind}", 2.0, count, window << 20)
             for kind in ("OAB-early", "OAB", "ASB") for count in (1, 2) for window in (64, 512)]  # fmt: skip
    return {
        one["measure"]: one
        for one in (
            result("writes", [transfer(name, seconds) for name, seconds in
                              (("plain file", 0.5), ("plain file, fsync", 1.0), ("do-nothing mount", 0.25))]),
            result("bounds", {"rows": [transfer("mount, OAB", 1.0)],
                              "sums": [{"name": "mount, OAB", "parts_cpu": 1.5, "reached": 0.625}]}),
            result("machines", [{"link_mbit": 100, "mb_of_each_second": [10.0, 20.0], "mb_per_second": 15.0}]),
            result("repair", [{"link_mbit": 100, "seconds": 2.0}]),
            result("manager", {"commits": [{"clients": 16, "commits_per_second": 1500.0, "median_seconds": 0.0015}],
                               "large": {"benefactors": 1000, "chunks": 10**6, "restart_seconds": 1.5}}),
            result("stripe", sweep),
            result("window", sweep),
            result("similarity", [similarity("cdc:64KiB", 9 * 10**7, cut_seconds=0.1),
                                  similarity("fastcdc:64KiB", 8 * 10**7, "cdc:64KiB"),
                                  similarity("cbch:m=20,k=14,p=20", 7 * 10**7),
                                  similarity("cbch:m=32,k=8,p=32", 6 * 10**7)]),
            result("images", [images(), images(close="durable")]),
            result("blast", BLAST),
            result("peers-images", [images(name="restic", how="h"), REFUSED | {"series": "s"}]),
            result("peers-files", [PEER_FILE, REFUSED]),
            result("merging", MERGING),
            result("aggregate", AGGREGATE),
            result("codecs", [CODEC, REFUSED | {"set": "s", "of": "files"}]),
            result("repeats", [transfer("mount, same again", 1.0)]),
            result("versions", [transfer("get, first version", 1.0)]),
            result("placement", [{"trace": "spot", "hosts": 32, "rows": [
                {"name": "falcon", "failures": 100.0, "unrecoverable_percent": {"value": 12.5, "low": 10.0, "high": 15.0},
                 "makespan": {"value": 1.25}, "repairs_per_hundred": {"value": 0.0}}]}]),
            result("coding", {"rows": [transfer("(3,2), durable", 2.0)], "cpu_per_gb": {"coding": 0.25, "hashing": 0.5}, "by_threads": [
                {"image": "mcf", "threads": threads, "plain_of_threads": [4 * 10**6] * threads,
                 "encoded_of_threads": [10**6] * threads, "compress_seconds": 1.5, "code_seconds": 0.5, "decode_seconds": 0.5,
                 "decompress_seconds": 0.25} for threads in (1, 2)]}),
            result("testbed-clients", TESTBED),
            result("testbed-hosts", TESTBED),
            result("testbed-phases", TESTBED),
            result("testbed-links", [{"link_mbit": 1000, "store_of_link": 0.96}]),
            result("makespan", {"evictions_from": "trace spot", "jobs": [
                {"image": "mcf", "scheme": "(3,2)", "work_hours": 1.0, "makespan_hours": [1.25, 1.75], "evictions": 3,
                 "recovery_seconds": [4.0, 6.0]}]}),
            result("peers-coded", [PEER_FILE | {"name": "stdchk (3,2), ASB", "rebuild_seconds": 2.5, "rebuilt_bytes": 3 * 10**8}]),
            result("memory", [transfer("mount, one large file", 1.0) | {"peak_memory_bytes": 70 << 20}]),
        )
    }  # fmt: skip


def row_of(text, name):
    """The cells of the first row of the page whose first cell is `name`."""
    line = next(line for line in text.splitlines() if re.match(rf"<tr><td[^>]*>{re.escape(name)}</td>", line))
    return re.findall(r"<td[^>]*>(.*?)</td>", line)


class Page(unittest.TestCase):
    def test_every_part_is_there_with_its_figures(self):
        text = page.page(everything())
        for part in parts.ALL:
            self.assertTrue(f"<h2>{html.escape(part.title)}</h2>" in text, part.title)
        self.assertFalse("Not measured (" in text)
        self.assertEqual(row_of(text, "Local I/O"), ["Local I/O", "11.8", "0.160", "1.00", "0.500", "2,000", "1.00"])
        self.assertEqual(row_of(text, "/stdchk/null")[-1], "2.00", "against the plain file")
        self.assertEqual(
            row_of(text, "cdc:64KiB")[1:4], ["1,000", "10.0", "90.9"], "cutting, times fastcdc, with names"
        )
        self.assertEqual(
            row_of(text, "CbCH no-overlap, m = 20 B, k = 14 b")[2:], ["82.0 % [26.6]", "70.0 % [26.4]", "70.0 % [50]"]
        )
        self.assertEqual(
            row_of(text, "k = 8, similarity %: here"), ["k = 8, similarity %: here", "–", "60.0", "–", "–", "–"]
        )
        self.assertEqual(row_of(text, "Data size (TB)")[-1], "80.0 %")
        self.assertIn("0.625", text, "how near the mount comes to its bound")
        sets = [row_of(line, "s") for line in text.splitlines() if re.match(r"<tr><td[^>]*>s</td>", line)]
        self.assertIn(["s", "2", "4.00", "[1.50, 2.50]", "7", "[3, 4]", "75.0", "25.0", "0.000"], sets, "Table III")
        self.assertIn(["s", "–", "–", "–", "25.0", "–"], sets, "Table IV")
        self.assertIn(["s", "16.0", "2.00", "0.100", "0.500", "75.0", "1.00", "0.050", "0.250", "75.0"], sets)
        self.assertEqual(row_of(text, "falcon"), ["falcon", "100", "12.5", "[10.00, 15.00]", "1.25", "0.000"])
        self.assertEqual(row_of(text, "stdchk (3,2), ASB"), ["stdchk (3,2), ASB", "300", "2.50"])
        self.assertEqual(row_of(text, "dedicated server"), ["dedicated server", "1", "2.00", "1.00"])
        mcf = [row_of(line, "mcf") for line in text.splitlines() if re.match(r"<tr><td[^>]*>mcf</td>", line)]
        self.assertIn(["mcf", "(3,2)", "1.00", "1.50", "3", "5.00"], mcf, "Figure 3")
        self.assertIn(["mcf", "1,677", "14.4", "1677", "14.4"], [row[:5] for row in mcf], "Table 1")
        self.assertEqual(row_of(text, "pcodec"), ["pcodec", "concatenation", "1000000", "3.00", "300", "600"])

    def test_what_was_not_measured_is_named_with_the_way_to_measure_it(self):
        for measure in everything():
            found = everything()
            del found[measure]
            text = page.page(found)
            self.assertTrue(f"Not measured ({measure})" in text, measure)

    def test_a_peer_that_could_not_run_says_why_in_plain_text(self):
        self.assertTrue("Not measured: no &lt;port&gt; is free" in page.page(everything()))

    def test_missed_goals_come_first_and_are_counted(self):
        goals = [{"what": name, "value": value, "wanted": 1.0, "met": met}
                 for name, value, met in (("good", 2.0, True), ("bad", 0.5, False), ("unknown", None, False))]  # fmt: skip
        text = page.page({"writes": everything()["writes"] | {"targets": goals}})
        self.assertIn("1 of 3 goals were met", text)
        self.assertLess(text.index("writes: bad"), text.index("writes: good"))
        self.assertEqual(row_of(text, "writes: unknown")[1], "not measured")

    def test_figures_of_the_tiny_size_carry_a_warning(self):
        found = everything()
        self.assertFalse("tiny size" in page.page(found))
        found["memory"]["size"] = "tiny"
        self.assertTrue("tiny size" in page.page(found))

    def test_a_measure_without_a_part_is_shown_as_it_is(self):
        found = everything() | {"files": result("files", [{"name": "a <file>", "seconds": [1.0, 3.0], "note": None}])}
        text = page.page(found)
        self.assertIn("Also measured: files", text)
        self.assertEqual(row_of(text, "a &lt;file&gt;"), ["a &lt;file&gt;", "2.00", "–"])

    def test_a_measure_without_a_part_of_its_own_shows_its_rows_of_every_kind(self):
        rows = {"ratios": [{"method": "gzip -6", "ratio": 1.5}], "end_to_end": [{"sink": "slow", "seconds": [3.0, 1.0, 2.0]}]}
        text = page.page({"other": result("other", rows)})
        for expected in ("method", "gzip -6", "sink", "slow"):
            self.assertIn(expected, text)

    def test_every_plot_is_well_formed(self):
        plots = re.findall(r"<svg.*?</svg>", page.page(everything()), re.DOTALL)
        self.assertGreaterEqual(len(plots), 8)
        for plot in plots:
            xml.etree.ElementTree.fromstring(plot)


class Plots(unittest.TestCase):
    def points(self, plot):
        """Title, x and y of every circle with a title."""
        circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"[^>]*><title>([^<]+)</title>', plot)
        return {title: (float(x), float(y)) for x, y, title in circles}

    def test_higher_values_lie_higher_and_zero_lies_on_the_axis(self):
        points = self.points(svg.lines("t", "x", "y", {"a": {1: 0.0, 2: 100.0, 8: 50.0}}))
        zero, top, middle = points["a, 1: 0"], points["a, 2: 100"], points["a, 8: 50"]
        self.assertEqual(zero[1], svg.HEIGHT - svg.BOTTOM)
        self.assertAlmostEqual(middle[1], (zero[1] + top[1]) / 2, delta=0.2)
        self.assertTrue(zero[0] < top[0] < middle[0])

    def test_ticks_are_round_and_reach_the_largest_value(self):
        for largest, step in ((9, 2), (100, 20), (1890, 500), (0.3, 0.1), (0, 1)):
            self.assertAlmostEqual(svg.nice_step(largest), step)
        for largest in (1, 7, 999, 1001):
            frame = svg.Frame("t", "x", "y", [1], largest)
            self.assertGreaterEqual(frame.top, largest)

    def test_words_are_escaped(self):
        plot = svg.bars("a < b", "x & y", "z", {"<one>": {"&": 1.0}})
        xml.etree.ElementTree.fromstring(plot)
        self.assertNotIn("<one>", plot)


class Paper(unittest.TestCase):
    """The paper's tables were copied whole, and agree with what its text says of them."""

    def test_table_4_has_every_cell_and_agrees_with_table_3(self):
        self.assertEqual(sorted(published.TABLE_4), [8, 10, 12, 14])
        for block in published.TABLE_4.values():
            for values in block.values():
                self.assertEqual(len(values), len(published.WINDOWS))
            for shortest, average, longest in zip(block["shortest"], block["average"], block["longest"]):
                self.assertTrue(shortest < average < longest)
        of_table_3 = published.TABLE_3["CbCH no-overlap, m = 20 B, k = 14 b"][1]
        self.assertEqual(published.TABLE_4[14]["rate"][0], of_table_3[1])
        self.assertEqual(round(published.TABLE_4[14]["similarity"][0]), of_table_3[0])

    def test_improvements_of_table_5_are_those_of_its_figures(self):
        for local, pool, improvement in list(published.TABLE_5.values())[:2]:
            self.assertAlmostEqual(100 * (1 - pool / local), float(improvement.split()[0]), delta=0.5)


class Reading(unittest.TestCase):
    def test_results_are_read_by_measure_and_later_folders_count(self):
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            for folder, rows in ((first, []), (second, [transfer("plain file", 1.0)])):
                (Path(folder) / "writes.json").write_text(json.dumps(result("writes", rows)))
            (Path(first) / "settings.json").write_text('{"something": "else"}')
            found = report.read([Path(first), Path(second)])
        self.assertEqual(list(found), ["writes"])
        self.assertEqual(len(found["writes"]["rows"]), 1)

    def test_no_results_are_an_error_that_says_how_to_get_some(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertRaisesRegex(report.Failure, "make bench", report.read, [Path(folder)])

    def test_the_page_is_written_beside_the_results(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "writes.json").write_text(json.dumps(everything()["writes"]))
            with mock.patch.object(sys, "argv", ["bench-report", folder]), contextlib.redirect_stdout(io.StringIO()):
                report.main()
            self.assertIn("Abacus", (Path(folder) / "report.html").read_text())


if __name__ == "__main__":
    unittest.main()
