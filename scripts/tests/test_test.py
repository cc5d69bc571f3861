"""The closing line of the test run is the sum of what the suites say, and a failure anywhere shows in it."""

import contextlib
import io
import unittest

import script

runner = script.load("test")

CARGO_GOOD = "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n"
CARGO_BAD = "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n"


def outcome_of(shell_text, tally_of_line):
    """Runs a shell command as a stage, in silence."""
    with contextlib.redirect_stdout(io.StringIO()):
        return runner.run(runner.Stage("stage", ["sh", "-c", shell_text], tally_of_line))


class Tallies(unittest.TestCase):
    def test_result_lines_of_cargo_are_counted_and_ignored_tests_are_failures(self):
        self.assertEqual(runner.tally_of_cargo(CARGO_GOOD), runner.Tally(12, 0))
        self.assertEqual(runner.tally_of_cargo(CARGO_BAD), runner.Tally(3, 3))

    def test_other_lines_of_cargo_are_not(self):
        self.assertEqual(runner.tally_of_cargo("running 12 tests\n"), runner.Tally())

    def test_unittest_says_how_many_ran_and_then_how_many_went_wrong(self):
        lines = ["Ran 9 tests in 0.1s\n", "FAILED (failures=1, errors=2)\n"]
        self.assertEqual(sum(map(runner.tally_of_unittest, lines), runner.Tally()), runner.Tally(6, 3))

    def test_a_skipped_unittest_is_a_failure(self):
        lines = ["Ran 9 tests in 0.1s\n", "OK (skipped=2)\n"]
        self.assertEqual(sum(map(runner.tally_of_unittest, lines), runner.Tally()), runner.Tally(7, 2))

    def test_the_last_line_of_pytest_is_counted_and_what_did_not_pass_is_a_failure(self):
        for line, wanted in [
            ("181 passed, 12 warnings in 20.07s\n", (181, 0)),
            ("2 failed, 29 passed, 1 skipped, 3 errors in 4.42s\n", (29, 6)),
            ("1 error in 0.50s\n", (0, 1)),
            ("3 passed tests in all\n", (0, 0)),
        ]:
            self.assertEqual(runner.tally_of_pytest(line), runner.Tally(*wanted), line)


class Stages(unittest.TestCase):
    def test_several_result_lines_of_one_stage_are_added_up(self):
        outcome = outcome_of(f"printf '{CARGO_GOOD}{CARGO_GOOD}'", runner.tally_of_cargo)
        self.assertEqual(outcome.tally, runner.Tally(24, 0))

    def test_a_check_that_fails_is_one_failure_and_one_that_passes_counts_nothing(self):
        self.assertEqual(outcome_of("exit 3", runner.tally_of_check).tally, runner.Tally(0, 1))
        self.assertEqual(outcome_of("exit 0", runner.tally_of_check).tally, runner.Tally())

    def test_a_suite_that_dies_without_a_result_line_is_a_failure(self):
        outcome = outcome_of(f"printf '{CARGO_GOOD}'; exit 101", runner.tally_of_cargo)
        self.assertEqual(outcome.tally, runner.Tally(12, 1))

    def test_a_command_that_does_not_exist_is_a_failure_and_not_the_end(self):
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = runner.run(runner.Stage("stage", ["/nonexistent/command"]))
        self.assertEqual(outcome.tally, runner.Tally(0, 1))

    def test_the_closing_line_stands_alone_at_the_end(self):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            tallies = [runner.Tally(5, 0), runner.Tally(0, 1)]
            runner.report([runner.Outcome(runner.Stage("stage", []), tally, 0.1) for tally in tallies])
        self.assertEqual(printed.getvalue().splitlines()[-1], "5 passed, 1 failed")


class Quick(unittest.TestCase):
    def test_it_has_what_takes_little_and_the_unit_tests_of_all_crates(self):
        names = [stage.name for stage in runner.QUICK]
        self.assertEqual(names, ["formatting", "layering", "docs", "python style", "clippy", "units"])
        units = runner.QUICK[-1].command
        for argument in ["--workspace", "--lib", "--bins"]:
            self.assertIn(argument, units)

    def test_all_but_the_unit_tests_are_stages_of_the_whole_run_as_they_are(self):
        for stage in runner.QUICK[:-1]:
            self.assertIn(stage, runner.STAGES)


if __name__ == "__main__":
    unittest.main()
