"""The demonstration reads the job's progress as it is, also while it is being written, and reports what it was told."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import script

sys.path.insert(0, str(script.SCRIPTS / "demo"))
import job  # noqa: E402
import output  # noqa: E402
import pool  # noqa: E402
import report  # noqa: E402

LOG = """thermo_style custom step temp pe etotal press cpu
Step Temp PotEng TotEng Press CPU
       0 3.000000 -6.773368 -2.273386 -3.702727 0.000000
      40 1.669297 -4.785792 -2.281856 5.661888 1.700000
      80 1.658526 -4.768317 -2.280538 5.749826 3.650000
"""


class Progress(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.job = job.Job("run", Path("checkpoints"), Path(directory.name), Path("/nowhere"))

    def write(self, progress, log=""):
        (self.job.run / "progress").write_text(progress)
        (self.job.run / "log").write_text(log)

    def test_a_run_that_has_not_begun_is_before_every_step(self):
        self.assertEqual(self.job.last_step(), -1)

    def test_a_line_that_is_half_written_does_not_count(self):
        self.write("# step seconds\n0 0.1\n40 1.6\n41 1.")
        self.assertEqual(self.job.progress(), {0: 0.1, 40: 1.6})

    def test_the_wait_for_a_checkpoint_is_the_time_between_its_two_lines(self):
        self.write("0 0.2\n40 1.5\n80 3.4\n", LOG)
        waits = self.job.waits()
        self.assertEqual(list(waits), [40, 80])
        self.assertAlmostEqual(waits[40], 0.2)
        self.assertAlmostEqual(waits[80], 0.25)

    def test_a_checkpoint_that_was_not_completed_has_no_wait(self):
        self.write("0 0.2\n40 1.5\n80 3.4\n120 5.4\n", LOG)
        self.assertEqual(list(self.job.waits()), [40, 80])


class OutputFiles(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def test_the_last_step_is_that_of_the_last_whole_line(self):
        log = self.directory / "log"
        self.assertEqual(output.last_step(log), -1)
        log.write_text("step 10\nstep 20\nstep 3")
        self.assertEqual(output.last_step(log), 20)

    def test_the_store_of_file_states_is_no_output(self):
        (self.directory / output.STORE).mkdir()
        (self.directory / "log").write_text("step 10\n")
        self.assertEqual(output.files_of(self.directory), {"log": b"step 10\n"})

    def test_the_last_kill_comes_before_the_job_can_be_done(self):
        first, last = output.KILLED_IN[-1]
        self.assertLess(first, last)
        self.assertLess(last + output.OVERSHOOT_MAX, output.STEPS + output.SEGMENT)


class Processes(unittest.TestCase):
    def test_a_killed_job_leaves_no_process_of_its_session(self):
        victim = job.Job("run", None, None, None)
        victim.process = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"], start_new_session=True)
        while len(job.processes_of_session(victim.process.pid)) < 3:
            self.assertIsNone(victim.process.poll())
        self.assertEqual(victim.kill(), 3)
        self.assertEqual(job.processes_of_session(victim.process.pid), set())

    def test_other_sessions_are_not_touched(self):
        self.assertNotIn(os.getpid(), job.processes_of_session(1 << 22))


class Repair(unittest.TestCase):
    VICTIM = {"id": 2, "pid": 200}

    def status(self, victim_state, **counts):
        benefactors = [{"id": 1, "pid": 100, "state": "online"}, {"id": 2, "pid": 200, "state": victim_state}]
        return {"benefactors": benefactors, "chunks_at_risk": 0, "repairs_pending": 0} | counts

    def test_a_loss_that_the_manager_does_not_count_as_one_yet_is_not_repaired(self):
        for state in ("online", "offline"):
            self.assertFalse(pool.repaired(self.status(state), self.VICTIM))

    def test_chunks_that_lack_a_replica_are_not_repaired(self):
        for count in ("chunks_at_risk", "repairs_pending"):
            with self.subTest(count=count):
                self.assertFalse(pool.repaired(self.status("lost", **{count: 1}), self.VICTIM))

    def test_a_noticed_loss_with_all_replicas_in_place_is_repaired(self):
        self.assertTrue(pool.repaired(self.status("lost"), self.VICTIM))


class Report(unittest.TestCase):
    def test_sizes_are_decimal(self):
        self.assertEqual([report.size(n) for n in (0, 999, 1000, 22_530_000, 1.5e9)],
                         ["0 bytes", "999 bytes", "1 kB", "23 MB", "1.50 GB"])  # fmt: skip

    def test_the_report_tells_what_was_lost_and_passed_over(self):
        facts = report.Facts(seed=7, reached_step=285, restored_step=240, lost_seconds=2.25)
        facts.passed_over = [{"timestep": 280, "reason": "argon.280.2 was interrupted"}]
        facts.victim = {"id": 3, "used_bytes": 96_000_000}
        benefactors = [{"state": "online", "used_bytes": 450_000_000}, {"state": "lost", "used_bytes": 96_000_000}]
        savings = {"unique_bytes": 225_000_000}
        facts.status = {"benefactors": benefactors, "savings": savings, "repairs_done": 31, "chunks_lost": 2}
        facts.runs = [report.Run("mount, until killed", 16.8, [0.04, 0.06, 0.05])]
        text = report.text(facts, seconds=61.0)
        told = ["45 of 285 steps", "step 280: argon.280.2 was interrupted", "0.050 s", "0.150 s", "450 MB", "2 chunks"]
        for expected in [*told, "--seed 7"]:
            self.assertIn(expected, text)


if __name__ == "__main__":
    unittest.main()
