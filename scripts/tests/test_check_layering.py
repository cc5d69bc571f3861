"""The layering check lets every edge of the design pass and fails on any other."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

import script

check = script.load("check-layering")


def package(name, *dependencies, kind=None, directory="/nowhere"):
    """One package as `cargo metadata` prints it, reduced to what the check reads."""
    entries = [{"name": dependency, "kind": kind} for dependency in dependencies]
    return {"name": name, "dependencies": entries, "manifest_path": f"{directory}/Cargo.toml"}


def complaints(*packages):
    return list(check.complaints({"packages": packages}))


class Edges(unittest.TestCase):
    def test_the_edges_of_the_design_pass(self):
        allowed = [
            package("stdchk-reduce", "stdchk-model", "blake3"),
            package("stdchk-net", "stdchk-model", "stdchk-placement", "tokio"),
            package("stdchk-client", "stdchk-net", "stdchk-reduce"),
            package("stdchk-manager", "stdchk-client", "stdchk-placement", "redb"),
            package("stdchk-operations", "stdchk-client", "stdchk-filestate"),
            package("stdchk", "stdchk-operations", "stdchk-mount", "stdchk-manager", "stdchk-benefactor"),
            package("stdchk-tests", "stdchk", "stdchk-manager", "stdchk-benefactor"),
        ]
        self.assertEqual(complaints(*allowed), [])

    def test_the_manager_and_the_benefactor_never_depend_on_each_other(self):
        self.assertIn("its own layer", complaints(package("stdchk-manager", "stdchk-benefactor"))[0])
        self.assertIn("its own layer", complaints(package("stdchk-benefactor", "stdchk-manager"))[0])

    def test_the_library_of_operations_brings_neither_fuse_nor_roles(self):
        for role in ("mount", "manager", "benefactor"):
            with self.subTest(role=role):
                self.assertIn("must stay out", complaints(package("stdchk-operations", f"stdchk-{role}"))[0])

    def test_no_edge_leads_upwards(self):
        for lower, higher in [("model", "reduce"), ("net", "client"), ("client", "mount"), ("reduce", "net")]:
            with self.subTest(lower=lower, higher=higher):
                self.assertIn("a higher layer", complaints(package(f"stdchk-{lower}", f"stdchk-{higher}"))[0])

    def test_nothing_depends_on_the_binary_but_what_tests_it(self):
        self.assertEqual(len(complaints(package("stdchk-mount", "stdchk"))), 1)

    def test_an_edge_that_only_a_build_script_has_counts(self):
        self.assertEqual(len(complaints(package("stdchk-model", "stdchk-net", kind="build"))), 1)

    def test_dependencies_of_tests_are_free(self):
        self.assertEqual(complaints(package("stdchk-manager", "stdchk-benefactor", "tempfile", kind="dev")), [])
        self.assertEqual(complaints(package("stdchk-model", "tempfile", kind="dev")), [])

    def test_a_crate_without_a_layer_is_refused(self):
        self.assertIn("has no layer", complaints(package("stdchk-extra"))[0])
        self.assertIn("has no layer", complaints(package("stdchk-net", "stdchk-extra"))[0])


class Purity(unittest.TestCase):
    def source_complaints(self, text):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "src").mkdir()
            (Path(directory) / "src" / "lib.rs").write_text(text)
            return complaints(package("stdchk-model", directory=directory))

    def test_a_pure_crate_has_no_runtime_and_no_system_calls(self):
        for dependency in ("tokio", "rustix", "libc"):
            with self.subTest(dependency=dependency):
                self.assertIn("is pure", complaints(package("stdchk-reduce", dependency))[0])

    def test_a_shell_may_have_them(self):
        self.assertEqual(complaints(package("stdchk-net", "tokio", "rustix", "libc")), [])

    def test_a_pure_crate_reads_no_file_and_no_clock(self):
        self.assertEqual(len(self.source_complaints("use std::fs;\nlet now = Instant::now();\n")), 2)

    def test_comments_and_tests_of_a_pure_crate_are_free(self):
        text = "//! unlike std::fs\nfn pure() {}\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n"
        self.assertEqual(self.source_complaints(text), [])


class Command(unittest.TestCase):
    def run_on(self, *packages):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as metadata:
            json.dump({"packages": packages}, metadata)
            metadata.flush()
            command = [script.SCRIPTS / "check-layering", "--metadata", metadata.name]
            return subprocess.run(command, capture_output=True, text=True)

    def test_a_forbidden_edge_makes_the_command_fail_and_is_named(self):
        outcome = self.run_on(package("stdchk-manager", "stdchk-benefactor"))
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("'manager' depends on 'benefactor'", outcome.stderr)

    def test_allowed_edges_make_it_succeed(self):
        self.assertEqual(self.run_on(package("stdchk-manager", "stdchk-net")).returncode, 0)


if __name__ == "__main__":
    unittest.main()
