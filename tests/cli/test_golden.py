"""Command lines and all that they print: ``golden.txt``, one after the other.

``$`` begins a command line, ``?`` its exit code where that is not 0, ``!`` a line of standard
error; what is indented is standard output, and ``+`` names a file that is left. ``python -m
tests.cli.test_golden`` writes anew what is printed, to be looked at as a diff.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.runs.store import dumps, save_record
from tests.bench.compare.launched import make_launched_record
from tests.commands import write_files
from tests.engines.logs.startup import SGLANG, VLLM_0_26, VLLM_0_33
from tests.runs.records import make_environment, make_record, make_sweep_cases

GOLDEN = Path(__file__).with_name("golden.txt")
TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
VARYING = [(re.compile(r"the machine has [\d.]+ GiB"), "the machine has … GiB")]
LINE = '{"arrival_s": 0, "input_tokens": 60, "output_tokens": 4}\n'
BLOCK = '{{"timestamp": {}, "input_length": {}, "output_length": 1, "hash_ids": {}}}\n'
TEXTS = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n",
    "backwards.jsonl": BLOCK.format(5, 512, [1]) + BLOCK.format(0, 512, [1]),
    "bad-value.jsonl": LINE + LINE.replace("60", "-1"),
    "binary.yaml": "\x00\x01\n",
    "broken.yaml": "model:\n  preset: [v4-flash\n",
    "contradiction.jsonl": BLOCK.format(0, 1024, [1, 2]) + BLOCK.format(5, 1024, [3, 2]),
    "cut.jsonl": LINE + LINE + LINE[:30],
    "empty.jsonl": "",
    "lengths.jsonl": '{"prompt_len": 3, "output_len": 1}\n',
    "list.yaml": "- 1\n- 2\n",
    "new.log": "\n".join(VLLM_0_33),
    "notes.json": "[]",
    "old.log": "\n".join(VLLM_0_26),
    "one.jsonl": BLOCK.format(0, 9, [1]),
    "other.jsonl": "time;prompt;answer\n1;2;3\n",
    "sglang.log": "\n".join(SGLANG),
    "slots.yaml": "cache: {num_slots: 2}\nworkload: {concurrency: 3}\n",
    "wrong.yaml": "name: 1\ncache: {sharing: all, block_tokns: 256}\n",
}
RECORDS = {
    "before": make_launched_record(seed=1),
    "elsewhere": make_launched_record(
        seed=2, environment=make_environment(cpu="Arm Neoverse-V2", cpu_count=72)
    ),
    "same": make_launched_record(seed=2),
    "slower": make_launched_record(seed=2, factors={"flush": 1.1}),
}
RUNS = {
    "20261101T000000Z-smoke-aaaaaa": make_record(config_source="smoke"),
    "20261102T000000Z-sweep-bbbbbb": make_record(*make_sweep_cases()),
}


def make_folder(folder: Path) -> None:
    """The files that command lines name."""
    write_files(folder)
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, record in RECORDS.items():
        save_record(record.model_copy(update={"run_id": name}), folder)
    edited = dumps(RECORDS["same"]).replace('"seed": 0', '"seed": 1')
    (folder / "edited.json").write_text(edited, encoding="utf-8")
    for name, record in RUNS.items():
        day = f"2026-11-{name[6:8]}T00:00:00+00:00"
        changes = {"run_id": name, "started_utc": day}
        save_record(record.model_copy(update=changes), folder / "results")


def run(line: str) -> str:
    """What a command line prints, its exit code and the files that it leaves."""
    before = _files()
    done = CliRunner(env=TERMINAL).invoke(app, shlex.split(line)[1:])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    told = [f"? {done.exit_code}"] if done.exit_code else []
    told += [f"! {each}" for each in done.stderr.splitlines()]
    told += [f"  {each}".rstrip() for each in done.stdout.splitlines()]
    told += [f"+ {each}" for each in sorted(_files() - before)]
    text = "\n".join(told).strip("\n")
    for pattern, plain in VARYING:
        text = pattern.sub(plain, text)
    return text


def _files() -> set[str]:
    return {str(path) for path in Path().rglob("*") if path.is_file()}


def rows() -> Iterator[tuple[str, str]]:
    """Command lines, and what they are to print."""
    for block in re.split(r"^\$ ", GOLDEN.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        line, _, told = block.partition("\n")
        yield line, told.strip("\n")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    make_folder(folder)
    return folder


@pytest.mark.usefixtures("fresh_faults")
@pytest.mark.parametrize(("line", "told"), list(rows()), ids=[line for line, _ in rows()])
def test_a_command_line_prints_what_it_did(
    line: str, told: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run(line) == told


def main() -> None:
    """Write anew what every command line prints."""
    written = []
    for line, _ in rows():
        with TemporaryDirectory() as folder, chdir(folder):
            os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
            make_folder(Path())
            written.append(f"$ {line}\n{run(line)}".rstrip() + "\n")
    GOLDEN.write_text("\n".join(written), encoding="utf-8")


if __name__ == "__main__":
    main()
