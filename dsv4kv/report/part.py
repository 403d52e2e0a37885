"""What every part of the run record has in common."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of the record: frozen, documented by its attribute docstrings."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
