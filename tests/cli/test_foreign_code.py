"""Code is imported for a name that the user typed, not for one that is read somewhere."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4kv.errors import INTERRUPTED
from tests.bench.settings import TINY
from tests.cli.shell import invoke

EVIL = "open('imported', 'a').close()\nf = None\n"
QUICK = (*TINY, "workload.trace=null", "workload.step=gather", "model.layers=[0]")
TINIEST = [word for setting in QUICK for word in ("--set", setting)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    return tmp_path


@pytest.mark.parametrize("name", ["evil:f", "flush=evil.py:f"])
@pytest.mark.parametrize(
    "words",
    ["bench c.yaml", "profile c.yaml", "config show c.yaml", "compare --ab c.yaml c.yaml"],
)
def test_a_configuration_names_no_code(name: str, words: str) -> None:
    Path("c.yaml").write_text(f"backend: {name}\n")
    done = invoke(*words.split())
    assert done.exit_code == 2
    assert (
        f"error: c.yaml:1: backend is {name!r}: a configuration names one of reference, cpu, "
        "cuda, vllm, sglang, flashmla, deepgemm; type any other: "
        f"--backend {name}, or --set backend={name}."
    ) in done.output
    assert not Path("imported").exists()


def test_a_configuration_names_a_backend_of_ours() -> None:
    Path("c.yaml").write_text("backend: reference\n")
    assert invoke("config", "show", "c.yaml").exit_code == 0


# As ``python -m dsv4kv`` three times, and torch is imported once.
THREE = """
import contextlib, json, runpy, sys
for sys.argv in json.loads(sys.argv[1]):
    with contextlib.suppress(SystemExit):
        runpy.run_module("dsv4kv", run_name="__main__")
    sys.path.insert(0, "")
"""


def test_a_name_that_is_typed_is_not_looked_for_in_the_current_folder() -> None:
    options = {"--backend": "evil:f", "--set": "backend=evil:f", "--axis": "backend=evil:f"}
    lines = [["dsv4kv", "bench", "smoke", "--quiet", *TINIEST, *each] for each in options.items()]
    done = subprocess.run(
        [sys.executable, "-c", THREE, json.dumps(lines)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("For evil.py in this folder write evil.py:f.") == len(options)
    assert not Path("imported").exists()


def test_a_resumed_sweep_imports_no_code_that_is_not_typed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    axis = ("--axis", "workload.concurrency=1,2")
    backend = ("--backend", "evil.py:f")
    with monkeypatch.context() as patch:
        patch.setattr("dsv4kv.bench.run.run_case", stop)
        words = ("bench", "smoke", "--quiet", *TINIEST, *backend, *axis)
        assert invoke(*words).exit_code == INTERRUPTED
    (job,) = Path("results").glob("*.points.jsonl")
    done = invoke("bench", "--quiet", "--resume", str(job))
    assert done.exit_code == 2
    assert done.stderr.startswith(f'error: --resume {job}: its backend="evil.py:f" is code, and ')
    assert not Path("imported").exists()
    again = ("bench", "smoke", "--quiet", "--resume", str(job), *TINIEST, *backend, *axis)
    assert "evil.py:f" in invoke(*again).stderr
    assert Path("imported").exists()
