"""The published schema: the file is the program's.

``python -m tests.runs.test_schema`` writes the file anew after an intended change.
"""

import json
from pathlib import Path

from dsv4kv.runs.schema import SCHEMA_VERSION, RunRecord
from dsv4kv.runs.store import DIGEST

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "record-schema.json"


def schema_text() -> str:
    """JSON Schema (2020-12) of the files that ``dsv4kv bench`` writes, as it is published."""
    schema = RunRecord.model_json_schema(mode="serialization")
    schema["properties"][DIGEST] = {
        "description": (
            "SHA-256 of the document without this value, as JSON with sorted keys, no blanks, and "
            "characters beyond ASCII escaped; the first records have none."
        ),
        "pattern": "^[0-9a-f]{64}$",
        "title": "Content Sha256",
        "type": "string",
    }
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"dsv4kv run record, version {SCHEMA_VERSION}",
    }
    return json.dumps(head | schema | head, indent=2) + "\n"


def test_the_published_schema_is_that_of_this_version() -> None:
    assert PUBLISHED.read_text("utf-8") == schema_text(), (
        "docs/record-schema.json is not the schema: python -m tests.runs.test_schema"
    )


def test_every_field_is_described() -> None:
    schema = json.loads(schema_text())
    for name, part in [("RunRecord", schema), *schema["$defs"].items()]:
        for field, facts in part.get("properties", {}).items():
            part_of = schema["$defs"].get(facts.get("$ref", "").rpartition("/")[2], {})
            assert (facts | part_of).get("description"), f"{name}.{field}"


if __name__ == "__main__":
    PUBLISHED.write_text(schema_text(), "utf-8")
