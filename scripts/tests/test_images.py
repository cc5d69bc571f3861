"""Series of images: input that a seed determines, as many images as asked for, and nothing left running."""

import argparse
import json
import os
import random
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import script

images = script.load("images")
programs = images.programs


class Sleeper(programs.Program):
    """A program that runs for so many seconds and does nothing."""

    seconds = 1000

    def __init__(self, scratch, _seed, _megabytes):
        super().__init__(scratch)
        self.command = ["sleep", str(self.seconds)]
        self.how = "sleep"


class Series(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.into = Path(directory.name)
        self.pids = []

    def make(self, **changes):
        options = argparse.Namespace(seed=1, megabytes=1, interval=0.01, count=3, seconds_max=60)
        vars(options).update(changes)
        with mock.patch.dict(programs.PROGRAMS, {"sleeper": Sleeper}), mock.patch.dict(
            images.dumpers.DUMPERS, {"writer": self.dump}
        ):
            return images.make_series("sleeper", "writer", self.into, options)

    def dump(self, pid, image, _seconds_max):
        self.pids.append(pid)
        image.write_bytes(b"image")

    def test_makes_as_many_images_as_asked_for_and_ends_the_program(self):
        folder = self.make()
        names = sorted(path.name for path in folder.iterdir())
        self.assertEqual(names, ["series.json", "sleeper.N0.T1", "sleeper.N0.T2", "sleeper.N0.T3"])
        about = json.loads((folder / "series.json").read_text())
        self.assertEqual([dump["bytes"] for dump in about["dumps"]], [5, 5, 5])
        self.assertRaises(ProcessLookupError, os.kill, self.pids[0], 0)

    def test_never_adds_to_a_series_that_is_there(self):
        self.make()
        self.assertRaisesRegex(images.Failure, "not empty", self.make)

    def test_says_so_when_the_program_ends_too_soon(self):
        with mock.patch.object(Sleeper, "seconds", 0):
            self.assertRaisesRegex(images.Failure, "ended with status 0", self.make, interval=60)

    def test_says_so_when_the_time_is_over(self):
        self.assertRaisesRegex(images.Failure, "not enough for 3 images: 0 made", self.make, seconds_max=0)

    def test_stops_before_the_disk_is_full(self):
        with mock.patch.object(images, "FREE_BYTES_MIN", 1 << 80):
            self.assertRaisesRegex(images.Failure, "no more images", self.make)


class BlastInput(unittest.TestCase):
    def test_a_seed_determines_the_sequences(self):
        def sequences(seed):
            return list(programs.Blast.sequences(programs.Blast, random.Random(seed), 3))

        self.assertEqual(sequences(1), sequences(1))
        self.assertNotEqual(sequences(1), sequences(2))

    def test_sequences_of_a_family_are_alike_and_others_are_not(self):
        family = programs.Blast.FAMILY
        sequences = list(programs.Blast.sequences(programs.Blast, random.Random(1), family + 1))

        def share_alike(one, other):
            return sum(map(int.__eq__, one, other)) / len(one)

        self.assertGreater(share_alike(sequences[0], sequences[family - 1]), 0.9)
        self.assertLess(share_alike(sequences[0], sequences[family]), 0.3)
        self.assertEqual(set(sequences[0]), set(b"ACGT"))


if __name__ == "__main__":
    unittest.main()
