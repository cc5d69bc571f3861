"""The docs check fails on a missing head, on a dead link and on a name of nothing, and on nothing else."""

import subprocess
import tempfile
import unittest
from pathlib import Path

import script

check = script.load("check-docs")


class Complaints(unittest.TestCase):
    def complaints(self, **files):
        """Complaints about a project of these files; `__` in a name stands for a dot, `___` for a slash."""
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            subprocess.run(["git", "init", "--quiet", root], check=True)
            for name, text in files.items():
                file = root / name.replace("___", "/").replace("__", ".")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
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

    def test_a_path_and_a_name_that_are_there_pass(self):
        document = "`crates/x.rs`, `crates/x.rs::a_test`, `crates/x.rs::Thing`, `scripts/`, `target/x` and `crates/*`\n"
        source = "//! Head.\n#[test]\nfn a_test() {}\npub struct Thing;\n"
        script = '"""Head."""\n'
        self.assertEqual(self.complaints(A__md=document, crates___x__rs=source, scripts___y__py=script), [])

    def test_a_path_of_nothing_is_named(self):
        [found] = self.complaints(A__md="see `crates/gone.rs`\n")
        self.assertIn("crates/gone.rs", found)

    def test_a_test_that_is_not_defined_is_named(self):
        source = "//! Head.\n#[test]\nfn a_test_of_more() { a_test(); }\n"
        for name in ["a_test", "of_more"]:
            with self.subTest(name=name):
                [found] = self.complaints(A__md=f"`crates/x.rs::{name}`\n", crates___x__rs=source)
                self.assertIn(name, found)

    def test_an_example_may_name_what_it_likes(self):
        self.assertEqual(self.complaints(A__md="```\n`crates/gone.rs`\n```\n"), [])


if __name__ == "__main__":
    unittest.main()
