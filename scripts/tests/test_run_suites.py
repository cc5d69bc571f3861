"""Every test binary that cargo made is run, and one that fails makes the whole fail."""

import contextlib
import io
import tempfile
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

    def suite_with(self, *tests):
        """A test binary of which these tests fail: the first time, or each time."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        listed = "".join(f"    {test}\\n" for test in tests)
        binary = folder / "suite"
        binary.write_text(
            f"""#!/bin/sh
if [ "$1" != --exact ]; then
    printf '\\nfailures:\\n\\n---- x stdout ----\\nwhy\\n\\nfailures:\\n{listed}\\ntest result: FAILED. 5 passed; {len(tests)} failed; 0 ignored;\\n'
    exit 101
fi
case "$2" in
always*) printf 'test result: FAILED. 0 passed; 1 failed; 0 ignored;\\n'; exit 101 ;;
gone) printf 'test result: ok. 0 passed; 0 failed; 0 ignored;\\n' ;;
*) printf 'test result: ok. 1 passed; 0 failed; 0 ignored;\\n' ;;
esac
"""
        )
        binary.chmod(0o755)
        return ("suite", str(binary), folder)

    def ended(self, *tests):
        """The exit status of a run with a suite of which these tests fail, and the result lines that it printed."""
        printed, status, found = io.StringIO(), 0, [self.suite_with(*tests)]
        with mock.patch.object(suites, "build", lambda: found), contextlib.redirect_stdout(printed):
            try:
                suites.main()
            except SystemExit as ended:
                status = ended.code
        lines = printed.getvalue().splitlines()
        return status, [line for line in lines if line.startswith("test result:")], lines[-1]

    def test_a_test_that_passes_when_it_runs_again_alone_counts_as_passed_and_is_named(self):
        status, results, last = self.ended("once")
        self.assertEqual((status, results), (0, ["test result: ok. 6 passed; 0 failed; 0 ignored;"]))
        self.assertEqual(last, "passed on the second try alone: suite once")

    def test_one_that_fails_again_or_that_is_not_there_fails(self):
        status, results, last = self.ended("once", "always", "gone")
        self.assertEqual((status, results), (1, ["test result: FAILED. 6 passed; 2 failed; 0 ignored;"]))
        self.assertEqual(last, "failed: suite always, suite gone")

    def test_nothing_runs_again_where_many_fail(self):
        names = [f"once{number}" for number in range(suites.AGAIN_MAX + 1)]
        status, results, last = self.ended(*names)
        self.assertEqual((status, results), (1, [f"test result: FAILED. 5 passed; {len(names)} failed; 0 ignored;"]))
        self.assertEqual(last, "failed: suite")

    def test_those_that_compute_leave_half_of_the_cores_to_others(self):
        with mock.patch.object(suites, "CORES", 6):
            self.assertEqual([suites.threads(name) for name in ("lives", "pools", "faults", "other")], [3, 3, 12, 12])


if __name__ == "__main__":
    unittest.main()
