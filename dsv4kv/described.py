"""Models whose fields are described by the strings that follow them.

pydantic reads the source for such strings as each class is made, which took every command a fifth
of a second; here a module is read once, where somebody asks for the schema.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
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
        for part in cls.__mro__[: cls.__mro__.index(Described)]:
            for name, text in _strings_of(part.__module__).get(part.__name__, {}).items():
                fields[name].setdefault("description", text)
        return schema


@cache
def _strings_of(module: str) -> dict[str, dict[str, str]]:
    """Strings that follow names in the classes of a module, by class and name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {each.name: dict(_strings(each)) for each in classes}


def _strings(source: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for line in pairwise(source.body):
        match line:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                yield name, inspect.cleandoc(text)
