"""Files and folders that options name to be written: refused before the work, not after it.

What cannot be known before, a disk that fills up, is said when it happens.
"""

from pathlib import Path
from typing import Any

import typer

from dsv4kv.errors import ConfigError
from dsv4kv.files import check_file, check_folder, refused_by

OUTPUTS = "dsv4kv.outputs"
"""In the context of a command line: options and the files that they name to be written."""


def to_file(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Of an option that names files, refuse those that cannot be written; ``-`` is no file.

    Raises:
        ConfigError: With the option, as it would be after the work.
    """
    for each in value if isinstance(value, list) else [value]:
        if each not in (None, "-"):
            context.meta.setdefault(OUTPUTS, []).append((param, Path(each)))
            with refused_by(param.opts[0], Path(each)):
                check_file(Path(each))
    return value


def keep_inputs(context: Any) -> None:
    """Refuse an output that another argument names as an input; raises ``ConfigError``."""
    for param, path in context.meta.get(OUTPUTS, ()):
        if not path.is_file():
            continue
        for name, value in context.params.items():
            given = value if isinstance(value, list | tuple) else [value]
            paths = [Path(each) for each in given if isinstance(each, str | Path)]
            if name != param.name and any(_is_same(path, each) for each in paths):
                raise ConfigError(
                    f"{param.opts[0]} {path} would overwrite what the command reads: name "
                    "another file."
                )


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def to_page(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """As ``to_file`` for a file whose folder is made with it."""
    if value is not None:
        path = Path(value)
        context.meta.setdefault(OUTPUTS, []).append((param, path))
        with refused_by(param.opts[0], path, "name another place"):
            (check_folder if not path.parent.exists() else check_file)(path)
    return value


def to_folder(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Refuse a folder that was named and cannot be made or written.

    One that was not named is left to whoever writes there, who may have another place.

    Raises:
        ConfigError: With the option.
    """
    named = context.get_parameter_source(str(param.name))
    if value is not None and named is not None and named.name == "COMMANDLINE":
        with refused_by(param.opts[0], Path(value), "name another folder"):
            check_folder(Path(value))
    return value
