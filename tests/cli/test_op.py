"""``dsv4kv bench op``: one operation, checked and timed, of our own and of a user's backend."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.bench.figures import OperationBench
from dsv4kv.errors import PeerUnavailable
from dsv4kv.model.formats import entry_format
from dsv4kv.runs.points import make_case
from dsv4kv.runs.schema import Case, Memcpy
from dsv4kv.view.bench import op_page
from tests.cli import shell
from tests.gpu_twin import FEW_REPLAYS
from tests.runs.records import make_operation
from tests.view.terminal import shown

run = partial(shell.invoke, "bench", "op")
MINE = """
from dsv4kv.ops import cpu

def gather_topk(store, table, slots, indices, lengths, out):
    cpu.gather_topk(store, table, slots, indices, lengths, out)
"""
WRONG = MINE + "    out[1, 0, 5] = 1.0\n"
SMALL = ("--context", "1K", "--batch", "2", "--seconds", "1.5")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dsv4kv.bench.device.RULES", FEW_REPLAYS)
    Path("mine.py").write_text(MINE)
    Path("wrong.py").write_text(WRONG)


def document(*words: str) -> Any:
    return json.loads(run(*words, "--json").stdout)


def test_a_backend_is_checked_in_sight_and_timed_next_to_ours() -> None:
    done = run("gather_topk", "--backend", "mine.py:gather_topk", *SMALL)
    assert done.exit_code == 0, done.output
    checked = r"✓ \d+ cases equal the reference: gather_topk of mine\.py:gather_topk\n"
    answer, right = done.stdout.splitlines(keepends=True)[:2]
    ratio = r"(! )?gather_topk of mine\.py:gather_topk is \d.* times (slow|fast)er than cpu"
    assert re.match(ratio, answer)
    assert re.match(checked, right)
    assert "\ngather_topk  batch 2, top-k 512, context 1,024; " in done.stdout
    row = re.compile(r"^(mine\.py:gather_topk|cpu) +csa +", re.MULTILINE)
    rows = row.findall(done.stdout)
    assert rows == ["mine.py:gather_topk", "cpu"]
    assert not list(Path("results").glob("*"))
    assert "gather_topk: timing 2 requests of 1,024 tokens, 1.5 s\n" in done.stderr


def _timed(mine_ns: float, calls: int = 100) -> list[Case]:
    """A backend's case and our own, which takes 10,000 ns a call."""
    return [
        make_case(
            axis={"batch": 8, "topk": 512, "context": 8192},
            config={},
            backend=backend,
            memcpy=Memcpy(bytes=2**20, samples_ns=[10**5] * 9),
            operations=[
                make_operation().model_copy(
                    update={
                        "samples_ns": [round(ns) + i % 3 for i in range(calls)],
                        **{name: [9**5] * calls for name in ("entries", "bytes")},
                    }
                )
            ],
        )
        for backend, ns in (("mine.py:gather_topk", mine_ns), ("cpu", 10_000.0))
    ]


@pytest.mark.parametrize(
    ("timed", "answer"),
    [
        ([_timed(170_000)], "gather_topk of mine is 17.0 times slower than cpu."),
        ([_timed(8_000)], "gather_topk of mine is 1.25 times faster than cpu."),
        ([_timed(170_000, 3)],
         "! gather_topk of mine is 17.0 times slower than cpu, its interval unknown"),
        ([_timed(20_000), _timed(40_000)],
         "gather_topk of mine is 2.00 to 4.00 times slower than cpu."),
    ],
)  # fmt: skip
def test_the_first_line_says_how_much_faster_or_slower(
    timed: list[list[Case]], answer: str
) -> None:
    lines = shown(*op_page("gather_topk", "mine", 4, timed).answer).splitlines()
    assert lines[0] == answer
    table = next(line for line in lines if "speedup" in line)
    assert "median µs" in table


LARGE = "import torch\n{MINE}    if out.shape[1] > 100:\n        {wrong}\n".format
INSERT = MINE.replace(
    "gather_topk(store, table, slots, indices, lengths, out)",
    "window_insert(ring, values, slots, positions)",
)
EXCHANGED = MINE.replace("    cpu.", "    out.data = torch.empty_like(out)\n    cpu.")
LATER = """
import time
from threading import Thread
from dsv4kv.ops import cpu

def late(*arguments):
    time.sleep(0.05)
    cpu.gather_topk(*arguments)

def gather_topk(store, table, slots, indices, lengths, out):
    Thread(target=late, args=(store, table, slots, indices, lengths, out)).start()
"""
RAISES = MINE.replace("    cpu.", "    if out.shape[1] > 100: raise {0}(0)\n    cpu.").format
KEPT = "out.copy_(gather_topk.__dict__.setdefault(f'{indices.data_ptr()}', out.clone()))"


@pytest.mark.parametrize(
    ("text", "operation", "problem"),
    [
        *(
            (LARGE(MINE=MINE, wrong=wrong), "gather_topk", f"{{at}}{problem}")
            for wrong, problem in {
                "out[:, 64:] = 0.0": "request 0, row 64, channel ",
                "indices.clamp_(min=9)": "it changed what it only reads.",
                "store.pages[0].fill_(0)": "it changed what it only reads.",
                "out.fill_(torch.nan)": "it left its output as it was",
                KEPT: "request 0, row ",
            }.items()
        ),
        (
            f"{INSERT}    if len(ring.pages) != 4:\n        ring.pages[-1, 0] ^= 1\n",
            "window_insert",
            "{at}entry ",
        ),
        (RAISES("SystemExit"), "gather_topk", "raised SystemExit in odd.py:5: 0"),
        (f"import torch\n{EXCHANGED}", "gather_topk", "it exchanged the memory of an argument"),
        (LATER, "gather_topk", "it left its output as it was"),
    ],
)
def test_a_backend_that_is_wrong_where_it_is_timed_is_not_ranked(
    text: str, operation: str, problem: str
) -> None:
    Path("odd.py").write_text(text)
    done = run(operation, "--backend", f"odd.py:{operation}", *SMALL)
    assert (done.exit_code, done.stdout) == (6, "")
    said = " ".join(done.stderr.split())
    at = f"{operation} of odd.py:{operation}, batch 2, as timed: "
    assert problem.format(at=at) in said
    assert at not in said or "Nothing is ranked." in said


def test_what_a_backend_prints_is_no_part_of_a_document(tmp_path: Path) -> None:
    printing = MINE.replace("    cpu.", "    print('compiled')\n    cpu.")
    Path("prints.py").write_text(printing)
    words = ("bench", "op", "gather_topk", "--backend", "prints.py:gather_topk", *SMALL, "--json")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dsv4kv", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert json.loads(done.stdout)
    assert "compiled" in done.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (MINE + "gather_topk.formats = ({1: 2}, [3], 'fp8_ds_mla')\n", "its formats are "),
        ("def __getattr__(name): raise RuntimeError(name)\n", "has no 'gather_topk' (RuntimeE"),
    ],
)
def test_a_backend_of_odd_attributes_is_a_sentence(text: str, sentence: str) -> None:
    Path("odd.py").write_text(text)
    done = run("gather_topk", "--backend", "odd.py:gather_topk", *SMALL)
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_backend_without_a_case_here_is_not_taken_for_right() -> None:
    bench = OperationBench("gather_topk", ["backend=mine.py:gather_topk"], 1.0)
    bench.resolved = replace(bench.resolved, formats=())
    with pytest.raises(PeerUnavailable, match="takes no pages of this cache: nothing checked"):
        bench.check()


def test_every_shape_and_layer_type_is_a_row_with_its_bytes() -> None:
    found = document("gather_topk", "--topk", "16,64", *SMALL)
    assert [(each["topk"], each["layer_type"]) for each in found["rows"]] == [
        (16, "csa"),
        (64, "csa"),
    ]
    entry = entry_format("main", "fp8_ds_mla")
    for row in found["rows"]:
        asked = 2 * row["topk"]
        assert set(row["bytes"]) == {asked * (4 + entry.entry_bytes + 2 * entry.dims)}
        assert min(row["samples_ns"]) > 0
    layers = {each["layer_type"] for each in document("attend", *SMALL)["rows"]}
    assert layers == {"swa", "csa", "hca"}


def test_an_operation_that_a_backend_lacks_is_refused() -> None:
    done = run("attend", "--backend", "mine.py:gather_topk")
    assert (done.exit_code, "has gather_topk, and no attend." in done.stderr) == (2, True)
