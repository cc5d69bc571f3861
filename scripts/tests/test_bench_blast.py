"""The run that is checkpointed to its end: every checkpoint counts, and a run without one is no measurement."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

import script

blast = script.load("bench-blast")

UNTIL_TOLD = "until [ -e enough ]; do sleep 0.05; done"


class Shell(blast.programs.Program):
    def __init__(self, scratch, script_text):
        super().__init__(scratch)
        self.command = ["sh", "-c", script_text]


class Run(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)
        self.images = []

    def dump(self, _pid, prefix, _seconds_max):
        """Stands for gcore; after three images the program may end."""
        image = prefix.with_name(f"{prefix.name}.7")
        image.write_bytes(b"image")
        self.images.append(image.name)
        if len(self.images) == 3:
            (self.folder / "enough").touch()
        return image

    def run_to_end(self, text, interval):
        with mock.patch.object(blast.dumpers, "gcore_as", self.dump):
            return blast.run_to_end(Shell(self.folder, text), self.folder, interval)

    def test_every_checkpoint_counts(self):
        row = self.run_to_end(UNTIL_TOLD, interval=0.01)
        self.assertGreaterEqual(row["checkpoints"], 3)
        self.assertEqual(row["checkpoints"], len(self.images))
        self.assertEqual(row["written_bytes"], 5 * len(self.images))
        self.assertEqual(self.images[:2], ["blast.N0.T0.7", "blast.N0.T1.7"])
        self.assertGreater(row["seconds"], row["checkpointing_seconds"])

    def test_a_run_without_checkpoint_or_with_an_error_is_refused(self):
        for text, why in (("exit 0", "before its first checkpoint"), ("exit 3", "ended with status 3")):
            with self.subTest(text):
                self.assertRaisesRegex(blast.Failure, why, self.run_to_end, text, 600)


if __name__ == "__main__":
    unittest.main()
