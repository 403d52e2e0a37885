"""The notebook of run records runs; ``python -m tests.test_docs_records`` writes what it shows."""

import ast
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from tests.examples import FULL

RUN = subprocess.run
NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "records.ipynb"


def run(notebook: dict[str, Any]) -> list[Any]:
    """Run every cell of code in order; the value of each that ends with an expression."""
    names: dict[str, Any] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            body = ast.parse("".join(cell["source"]))
            last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
            exec(compile(body, NOTEBOOK.name, "exec"), names)
            value = ast.Expression(last.value) if isinstance(last, ast.Expr) else None
            shown.append(value and eval(compile(value, NOTEBOOK.name, "eval"), names))
    return shown


def run_here(command: list[str], **options: Any) -> Any:
    """In place of a process that imports torch anew, unless nothing is left out."""
    if FULL or command[1:3] != ["-m", "dsv4kv"]:
        return RUN(command, **options)
    assert CliRunner().invoke(app, command[3:], catch_exceptions=False).exit_code == 0
    return None


def test_the_notebook_runs_and_every_frame_it_shows_has_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", run_here)
    frames = [value for value in run(json.loads(NOTEBOOK.read_text("utf-8"))) if value is not None]
    assert len(frames) == 5
    assert all(len(frame) >= 2 and frame.notna().any(axis=None) for frame in frames)


def _show(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    data = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    return [{"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": data}]


if __name__ == "__main__":
    found = json.loads(NOTEBOOK.read_text("utf-8"))
    cells = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    for count, (cell, value) in enumerate(zip(cells, run(found), strict=True), 1):
        cell["execution_count"], cell["outputs"] = count, _show(value)
        for output in cell["outputs"]:
            output["execution_count"] = count
    NOTEBOOK.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
