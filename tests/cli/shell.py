"""Commands as a user types them, in a terminal of 100 columns without colours."""

from typing import Any

from typer.testing import CliRunner, Result

from dsv4kv.cli import app


def invoke(*words: object, width: int = 100, **more: Any) -> Result:
    terminal = {"COLUMNS": f"{width}", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=terminal).invoke(app, [str(word) for word in words], **more)


def text(output: str) -> str:
    """Without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in output.splitlines())
