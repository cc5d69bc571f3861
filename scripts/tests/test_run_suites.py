"""Every test binary that cargo made is run, and one that fails makes the whole fail."""

import contextlib
import io
import unittest
from pathlib import Path
from unittest import mock

import script

suites = script.load("run-suites")


def artifact(name, is_test=True, executable="/bin/true"):
    return {"reason": "compiler-artifact", "profile": {"test": is_test}, "executable": executable, "target": {"name": name},
            "manifest_path": "/tmp/Cargo.toml"}  # fmt: skip


class Suites(unittest.TestCase):
    def test_test_binaries_are_found_among_all_else_that_cargo_makes(self):
        self.assertEqual(list(suites.suite_of(artifact("a"))), [("a", "/bin/true", Path("/tmp"))])
        for other in (artifact("a", is_test=False), artifact("a", executable=None)):
            self.assertEqual(list(suites.suite_of(other)), [])
        self.assertEqual(list(suites.suite_of({"reason": "build-finished"})), [])

    def test_one_that_fails_is_named_and_all_others_are_run(self):
        found = [("bad", "/bin/false", Path("/tmp"))] + [(f"good{n}", "/bin/true", Path("/tmp")) for n in range(3)]
        printed = io.StringIO()
        with mock.patch.object(suites, "build", lambda: found), contextlib.redirect_stdout(printed):
            with self.assertRaises(SystemExit) as ended:
                suites.main()
        self.assertEqual(ended.exception.code, 1)
        self.assertIn("failed: bad", printed.getvalue())
        self.assertEqual(printed.getvalue().count("     Running "), 4)

    def test_those_that_compute_leave_half_of_the_cores_to_others(self):
        with mock.patch.object(suites, "CORES", 6):
            self.assertEqual([suites.threads(name) for name in ("lives", "pools", "faults", "other")], [3, 3, 12, 12])


if __name__ == "__main__":
    unittest.main()
