"""The published schema: the file is the program's, and records are what it says.

``python -m tests.runs.test_schema`` writes the file anew after an intended change.
"""

import json
from pathlib import Path
from typing import Any

from dsv4kv.runs.schema import SCHEMA_VERSION, RunRecord
from dsv4kv.runs.store import DIGEST, dumps
from tests.bench.compare.launched import make_launched_record
from tests.runs.records import make_record

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


def fields(value: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Walk a document along its schema: every key described, every required one there."""
    for choice in [schema, *schema.get("anyOf", [])]:
        if "$ref" in choice:
            schema = definitions[choice["$ref"].rpartition("/")[2]]
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) <= set(schema["properties"])
        assert set(schema.get("required", [])) <= set(value)
        for key, inner in value.items():
            fields(inner, schema["properties"][key], definitions)
    if isinstance(value, list) and "items" in schema:
        for inner in value:
            fields(inner, schema["items"], definitions)


def test_the_published_schema_is_that_of_this_version() -> None:
    assert PUBLISHED.read_text("utf-8") == schema_text(), (
        "docs/record-schema.json is not the schema: python -m tests.runs.test_schema"
    )


def test_what_is_saved_is_what_the_schema_describes() -> None:
    schema = json.loads(schema_text())
    for record in (make_record(), make_launched_record()):
        document = json.loads(dumps(record))
        assert "content_sha256" in document
        fields(document, schema, schema["$defs"])


def test_every_field_is_described() -> None:
    schema = json.loads(schema_text())
    for name, part in [("RunRecord", schema), *schema["$defs"].items()]:
        for field, facts in part.get("properties", {}).items():
            part_of = schema["$defs"].get(facts.get("$ref", "").rpartition("/")[2], {})
            assert (facts | part_of).get("description"), f"{name}.{field}"


if __name__ == "__main__":
    PUBLISHED.write_text(schema_text(), "utf-8")
