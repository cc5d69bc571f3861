"""The tables of docs/PROTOCOL.md have every message, struct, enum and failure of the Rust types, with numbers and fields.

Relies on how the messages are written in crates/model: one `#[n(NUMBER)]` above each variant and field. The idea: the
document has all that another implementation needs, so both are compared as a whole, and neither changes alone.
"""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "crates" / "model" / "src"
RECORDS = {"Done"}  # stand in records of the manager alone
GREETING = {"Grant", "Hello", "Welcome", "StandingBy", "Leader", "Join", "Joined"}  # stand in the section of that name

TYPE = re.compile(r"^pub (enum|struct) (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
NUMBER = r"#\[(?:cbor\()?n\((\d+)\)"
VARIANT = re.compile(rf"^    {NUMBER}[^\n]*\n(?:    #[^\n]*\n)*    (\w+)( \{{.*?^    \}}|\([^\n]*\)|),?$", re.M | re.S)
ROW = re.compile(r"\| (\d+) \| `(\w+)(?:\((.*?)\))?`")


def types():
    """Every type of the messages: its kind and its body, without comments."""
    others = ("policy.rs", "error.rs", "chunk_map.rs", "id.rs", "receipt.rs", "block.rs", "redundancy.rs", "lifetime.rs", "journal.rs",
              "maker.rs", "user.rs", "tier.rs")
    files = [*(MODEL / "message").rglob("*.rs"), *(MODEL / name for name in others)]
    texts = (re.sub(r"^\s*//.*\n", "", path.read_text(), flags=re.MULTILINE) for path in files)
    return {name: (kind, body) for text in texts for kind, name, body in TYPE.findall(text)}


def variants(body):
    """Number, name and count of fields of each variant."""
    return {(int(number), name, len(re.findall(NUMBER, fields))) for number, name, fields in VARIANT.findall(body)}


def count(fields):
    """How many fields stand in `a, b: [[c, d]], e?`."""
    while "[" in fields:
        fields = re.sub(r"\[[^\[\]]*\]", "list", fields)
    return len([field for field in fields.split(",") if field.strip()])


def rows(part):
    return {(int(number), name, count(fields)) for number, name, fields in ROW.findall(part)}


class Tables(unittest.TestCase):
    def setUp(self):
        document = (ROOT / "docs" / "PROTOCOL.md").read_text()
        captions = ["Requests to the manager:", "Changes:", "Answers of the manager:", "Requests to a benefactor, and",
                    "Structs:", "Enums:", "### Failures", "## Versions of the protocol"]  # fmt: skip
        starts = [document.index("\n" + caption) for caption in captions]
        self.parts = [document[start:end] for start, end in zip(starts, starts[1:])]
        self.types = types()

    def variants(self, name):
        found = variants(self.types[name][1])
        self.assertGreater(len(found), 2, f"the variants of {name} are found")
        return found

    def test_messages_stand_with_their_numbers_and_fields(self):
        requests, changes, answers, of_benefactors = self.parts[:4]
        self.assertEqual(rows(requests), self.variants("ManagerRequest"))
        self.assertEqual(rows(changes), self.variants("Change"))
        self.assertEqual(rows(answers), self.variants("ManagerReply"))
        self.assertEqual(
            rows(of_benefactors), self.variants("BenefactorRequest") | self.variants("BenefactorReply")
        )

    def test_failures_stand_with_their_codes(self):
        self.assertEqual(rows(self.parts[6]), self.variants("ErrorCode"))

    def test_structs_stand_with_all_their_fields(self):
        table = re.findall(r"^\| `(\w+)` \| `(.*?)`", self.parts[4], re.MULTILINE)
        told = {name: count(fields) for name, fields in table}
        of_messages = {
            name: len(re.findall(NUMBER, body))
            for name, (kind, body) in self.types.items()
            if kind == "struct" and re.search(NUMBER, body) and name not in GREETING | RECORDS | {"Failure"}
        }
        self.assertEqual(told, of_messages)

    def test_enums_stand_with_all_their_numbers(self):
        told = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", self.parts[5], re.MULTILINE))
        elsewhere = {"ManagerRequest", "ManagerReply", "Change", "BenefactorRequest", "BenefactorReply"}
        elsewhere |= {"ErrorCode", "Role", "Greeted"}
        enums = {name for name, (kind, body) in self.types.items() if kind == "enum" and "#[n(" in body}
        self.assertEqual(set(told), enums - elsewhere)
        for name, text in told.items():
            numbers = {int(number) for number in re.findall(r"(?:^|, |: )(\d+) ", text)}
            found = {number for number, _, _ in variants(self.types[name][1])}
            self.assertEqual(numbers, found, name)


if __name__ == "__main__":
    unittest.main()
