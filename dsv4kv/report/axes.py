"""Swept settings of a case, as they are named and written."""

import json
from collections.abc import Sequence
from typing import Any

from dsv4kv.report.record import Case


def axis_names(cases: Sequence[Case]) -> dict[str, str]:
    """Short name of every swept setting: the last part of its path unless two share it."""
    paths = list(dict.fromkeys(path for case in cases for path in case.axis))
    last = [path.rpartition(".")[2] for path in paths]
    return {
        path: path if last.count(name) > 1 else name
        for path, name in zip(paths, last, strict=True)
    }


def axis_text(case: Case) -> str:
    """The swept settings of a case: ``block_tokens=256, concurrency=8``."""
    names = axis_names([case])
    return ", ".join(f"{names[path]}={setting_text(v)}" for path, v in case.axis.items())


def setting_text(value: Any) -> str:
    """A setting as it is written in YAML: ``8``, ``true``, ``[0, 2]``, ``radix``."""
    return value if isinstance(value, str) else json.dumps(value)
