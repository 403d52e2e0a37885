"""The published schema of the run record: ``docs/record-schema.json``."""

import json
from typing import Any

from dsv4kv.report.record import SCHEMA_VERSION, RunRecord
from dsv4kv.report.store import DIGEST


def record_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the files that ``dsv4kv bench`` writes."""
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
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"dsv4kv run record, version {SCHEMA_VERSION}",
    } | {key: value for key, value in schema.items() if key != "title"}


def schema_text() -> str:
    """The schema as it is published."""
    return json.dumps(record_schema(), indent=2) + "\n"
