"""What every part of the run record has in common."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from dsv4kv.config.bench import Section


def _check_moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text} has no time zone: {text}Z would be UTC")
    return text


Moment = Annotated[str, AfterValidator(_check_moment)]
"""A time as ISO 8601 with its zone, which can be compared with any other."""

RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""Unique name of a run, which is the name of its file without an ending."""

Nanoseconds = Annotated[int, Field(ge=0, lt=2**63)]
"""A duration."""

Temperature = Literal["cold", "hot", "L2-resident"]
"""How an operation was timed, see ``Operation.temperature``."""


class Part(BaseModel):
    """A part of the record: frozen, documented by its attribute docstrings."""

    model_config = Section.model_config


def check_columns(part: Part, names: Iterable[str]) -> None:
    """Raise ``ValueError`` unless the columns of a table, those that are there, are as long."""
    found = {name: len(column) for name in names if (column := getattr(part, name)) is not None}
    if len(set(found.values())) > 1:
        lengths = ", ".join(f"{name} {length:,}" for name, length in found.items())
        raise ValueError(f"columns differ in length: {lengths}")
