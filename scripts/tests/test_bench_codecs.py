"""The comparison with compressors: what comes back is compared, the best width counts, refusals are rows."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import script

bench = script.load("bench-codecs")
codecs = __import__("bench.codecs", fromlist=["PEERS"])


class Halving:
    """Stands for a peer: numbers of 4 bytes suit it best, those of 8 bytes don't come back, those of 2 it refuses, and those of
    one crash it."""

    widths = (1, 2, 4, 8)

    def pack(self, data, width):
        if width == 1:
            os._exit(1)
        if width == 2:
            raise TypeError("too narrow")
        return (data if width == 4 else data[:1], data[: len(data) // 2])

    def unpack(self, packed, _width):
        return packed[0]


class Codecs(unittest.TestCase):
    def setUp(self):
        patched = mock.patch.dict(codecs.PEERS, {"halving": Halving})
        patched.start()
        self.addCleanup(patched.stop)

    def test_only_what_comes_back_counts(self):
        row = codecs.best("halving", [b"12345678" * 10])
        self.assertEqual((row["width"], row["stored_bytes"]), (4, 120))

    def test_a_peer_that_gives_nothing_back_is_refused_with_every_reason(self):
        with mock.patch.object(Halving, "widths", (1, 2, 8)):
            refused = codecs.best("halving", [b"12345678"])["refused"]
        self.assertIn("BrokenProcessPool", refused)
        self.assertIn("too narrow", refused)
        self.assertIn("8 bytes don't come back", refused)

    def test_a_missing_peer_is_a_row_that_says_why(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(bench, "PYTHON", Path(folder) / "none"):
            (row,) = bench.of_peer("fpzip", Path(folder))
        self.assertIn("scripts/setup peers", row["refused"])

    def test_a_peer_that_fails_is_a_row_with_its_last_words(self):
        with tempfile.TemporaryDirectory() as folder:
            python = Path(folder) / "python"
            python.write_text("#!/bin/sh\necho ModuleNotFoundError: nothing >&2\nexit 1\n")
            python.chmod(0o755)
            with mock.patch.object(bench, "PYTHON", python):
                (row,) = bench.of_peer("zipnn", Path(folder))
        self.assertEqual(row["refused"], "ModuleNotFoundError: nothing")

    def test_the_default_level_is_held_against_the_smallest_peer(self):
        rows = [
            {"set": "a", "name": "stdchk, default", "stored_bytes": 50},
            {"set": "a", "name": "pcodec", "stored_bytes": 100},
            {"set": "a", "name": "blosc2", "stored_bytes": 200},
            {"set": "a", "name": "zipnn", "refused": "not here"},
        ]
        (target,) = bench.targets(rows)
        self.assertEqual((target["value"], target["met"]), (0.5, True))


if __name__ == "__main__":
    unittest.main()
