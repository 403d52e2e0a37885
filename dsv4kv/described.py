"""Models whose fields are described by the strings that follow them.

pydantic reads the source for such strings as each class is made, which took every command a fifth
of a second; here it is read where somebody asks for the schema.
"""

import ast
import inspect
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Described(BaseModel):
    """Unknown keys are errors, values are frozen; what checks them is made when first needed."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core)
        fields = handler.resolve_ref_schema(schema)["properties"]
        for name, description in _descriptions(cls):
            if name in fields:
                fields[name].setdefault("description", description)
        return schema


def _descriptions(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Names that a string follows in a class or what it is derived from, and the string."""
    for part in model.__mro__[: model.__mro__.index(Described)]:
        with suppress(OSError):  # one that was made without source
            source = ast.parse(dedent(inspect.getsource(part))).body[0]
            assert isinstance(source, ast.ClassDef)
            for line in pairwise(source.body):
                match line:
                    case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        yield name, inspect.cleandoc(text)
