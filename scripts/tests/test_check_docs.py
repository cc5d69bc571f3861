"""The docs check fails on a missing head and on a dead link, and on nothing else."""

import subprocess
import tempfile
import unittest
from pathlib import Path

import script

check = script.load("check-docs")


class Complaints(unittest.TestCase):
    def complaints(self, **files):
        """Complaints about a project of these files; `__` in a name stands for a dot."""
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            subprocess.run(["git", "init", "--quiet", root], check=True)
            for name, text in files.items():
                (root / name.replace("__", ".")).write_text(text)
            return list(check.complaints(root))

    def test_files_with_heads_pass(self):
        found = self.complaints(
            lib__rs="//! What it is for.\n", tool__py='"""What it is for."""\n', run="#!/bin/sh\n# What it is for.\n"
        )
        self.assertEqual(found, [])

    def test_a_file_without_a_head_is_named(self):
        for name, text in {"lib__rs": "use std::io;\n", "tool__py": "import io\n", "run": "#!/bin/sh\nls\n"}.items():
            with self.subTest(name=name):
                [found] = self.complaints(**{name: text})
                self.assertTrue(found.startswith(name.replace("__", ".")))

    def test_a_link_to_a_file_that_is_there_passes(self):
        self.assertEqual(self.complaints(A__md="[b](B.md#part) [web](https://example.org)\n", B__md="b\n"), [])

    def test_a_link_that_leads_nowhere_is_named(self):
        [found] = self.complaints(A__md="[b](B.md)\n")
        self.assertIn("B.md", found)


if __name__ == "__main__":
    unittest.main()
