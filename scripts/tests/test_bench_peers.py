"""The comparison with peers: content that repeats nowhere, refusals as rows, targets, and nothing left running."""

import argparse
import contextlib
import io
import itertools
import os
import signal
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import script

peers = script.load("bench-peers")
processes = __import__("bench.processes", fromlist=["Processes"])


class Missing(peers.stores.Store):
    name = "missing"
    how = "a program that nobody has"

    def __init__(self, _folder, _stdchk):
        raise peers.Failure("`missing` is not installed")


class Broken(peers.stores.Store):
    name = "broken"
    how = "a program that fails"

    def put(self, _image, _timestep):
        self.run("false")


class Images(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)
        self.scratch = self.folder / "scratch"
        self.scratch.mkdir()

    def measure(self, *kinds):
        options = argparse.Namespace(images=self.folder / "images", count=5, stdchk=None)
        with mock.patch.object(peers.stores, "STORES", kinds), contextlib.redirect_stderr(io.StringIO()):
            return peers.measure_images(options, self.scratch)

    def add_images(self, *timesteps):
        series = self.folder / "images" / "made-up"
        series.mkdir(parents=True, exist_ok=True)
        for timestep in timesteps:
            (series / f"a.N0.T{timestep}").write_bytes(os.urandom(1 << 20))
        (series / "series.json").write_text("{}")
        return series

    def test_images_are_taken_in_the_order_of_their_timesteps(self):
        names = [path.name for path in peers.series(self.add_images(10, 9, 1))]
        self.assertEqual(names, ["a.N0.T1", "a.N0.T9", "a.N0.T10"])

    def test_what_can_not_run_is_a_row_that_says_why(self):
        self.add_images(1, 2)
        plain, broken, missing = self.measure(peers.stores.PlainFile, Broken, Missing)
        self.assertEqual((plain["image_bytes"], len(plain["seconds"])), ([1 << 20] * 2, 2))
        self.assertIn("failed with status 1", broken["refused"])
        self.assertIn("not installed", missing["refused"])
        self.assertEqual(list(next(self.scratch.iterdir()).iterdir()), [], "a store's folder stayed")

    def test_a_failure_of_our_own_fails_the_run(self):
        self.add_images(1, 2)
        with mock.patch.object(Broken, "name", "stdchk fsch:4KiB"):
            self.assertRaises(peers.Failure, self.measure, Broken)

    def test_one_image_is_no_series(self):
        self.add_images(1)
        self.assertRaisesRegex(peers.Failure, "two images or more", self.measure, peers.stores.PlainFile)


class Figures(unittest.TestCase):
    def row(self, name, seconds, stored):
        size = [10**8] * 3
        return {"name": name, "series": "s", "how": "", "image_bytes": size, "seconds": seconds,
                "cpu_seconds": [0.1] * 3, "stored_bytes": stored}  # fmt: skip

    def test_the_first_image_and_the_next_are_kept_apart(self):
        found = peers.summary_of_images(self.row("a", [1.0, 0.5, 0.25], [10**8, 10**7, 3 * 10**7]))
        self.assertEqual([round(value, 6) for value in found.values()], [100, 300, 1, 100, 20])

    def test_targets_hold_the_fastest_policy_that_is_small_enough_against_the_best_peer_in_each(self):
        ours = [
            self.row("stdchk fsch:1MiB", [1, 0.01, 0.01], [10**8, 10**8, 10**8]),
            self.row("stdchk fsch:4KiB", [1, 0.2, 0.2], [10**8, 8 * 10**6, 8 * 10**6]),
            self.row("stdchk cdc:64KiB", [1, 0.1, 0.1], [10**8, 10**7, 10**7]),
        ]
        peers_rows = [
            self.row("restic", [1, 1.0, 1.0], [10**8, 10**7, 10**7]),
            self.row("borg", [1, 0.5, 0.5], [10**8, 2 * 10**7, 2 * 10**7]),
        ]
        with contextlib.redirect_stdout(io.StringIO()):
            rate, stored, _cpu = peers.report_images(ours + peers_rows)
            _rate, least, _cpu = peers.report_images(ours[:1] + peers_rows)
        self.assertEqual((round(rate["value"], 6), rate["met"]), (5, True))
        self.assertEqual((round(stored["value"], 6), stored["met"]), (1, True))
        self.assertEqual((round(least["value"], 6), least["met"]), (10, False), "none is small enough")


class Content(unittest.TestCase):
    def test_no_page_of_any_file_repeats(self):
        stock = bytearray(1 << 20)
        pages = set()
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(peers, "STOCK_BYTES", len(stock)):
            stamps = itertools.count()
            for name in ("first", "second"):
                stock[:] = b"".join(place.to_bytes(8, "little") * 512 for place in range(256))
                path = Path(folder) / name
                peers.write(path, stock, stamps, 3 << 20, sync=True)
                content = path.read_bytes()
                pages |= {content[start : start + 4096] for start in range(0, len(content), 4096)}
                self.assertEqual(len(content), 3 << 20)
        self.assertEqual(len(pages), 2 * 3 * 256)


class Ending(unittest.TestCase):
    def ended(self, command, seconds):
        """The status of a process that was left to its group, which gave it so long to end by itself."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(processes, "ENDS_WITHIN_SECONDS", seconds):
            with processes.Processes() as group:
                said = Path(folder) / "log"
                child = group.start(["sh", "-c", command], said)
                processes.wait_until(lambda: said.read_text() == "on\n", 300, "the process", child)
            return child.returncode

    def test_processes_are_asked_to_end_with_their_group(self):
        self.assertEqual(self.ended("echo on; exec sleep 1000", seconds=300), -signal.SIGTERM)

    def test_processes_that_do_not_end_are_killed(self):
        self.assertEqual(self.ended("trap '' TERM; echo on; while :; do sleep 1; done", seconds=1), -signal.SIGKILL)

    def test_waiting_ends_at_once_when_the_process_has(self):
        with tempfile.TemporaryDirectory() as folder, processes.Processes() as group:
            child = group.start(["false"], Path(folder) / "log")
            began = time.monotonic()
            self.assertRaisesRegex(
                peers.Failure, "ended with status 1", processes.wait_until, lambda: False, 600, "it", child
            )
            self.assertLess(time.monotonic() - began, 300)


if __name__ == "__main__":
    unittest.main()
