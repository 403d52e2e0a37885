"""Every command ends with the answer in a line or two."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.doctor.machine import Check, Status
from dsv4kv.view.doctor import report_checks
from dsv4kv.view.table import Finding
from dsv4kv.view.terminal import draw
from tests.view.terminal import shown


def last_words(parts: Sequence[Any]) -> str:
    return "".join(text for text, _ in list(draw(parts[-1], 200))[-1])


# as regular expressions: sizes of engines change with their versions
ANSWERS = {
    "budget --gpus 4 --context 32K": (
        r"✓ [\d,]+ requests of 32,768 tokens fit at once: [\d,]+ tokens of context altogether\. "
        r"With --tp 1 --dp 4: [\d,]+ requests\."
    ),
    "budget --gpus 8 --axis context=4K,1M": (
        r"Requests at once: [\d,]+ at context=4K; \d+ at context=1M\."
    ),
    "trace info builtin:chat": (r"71\.44% of references are prefix hits in a cache without bound"),
    "trace mrc builtin:chat --strategy ends,zero:bounded": (
        r"90 % of the hits of a cache without bound need 6,016 tokens, 20\.2 MiB of v4-flash's "
        r"compressed cache\. In a cache without bound ends saves most, 73\.0% of prompt tokens, "
        r"of 73\.4% that are cached\."
    ),
}


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("command", ANSWERS)
def test_the_last_lines_are_the_answer(command: str, width: int) -> None:
    terminal = {"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"}
    shown = CliRunner(env=terminal).invoke(app, command.split()).output
    answer = " ".join(shown.rstrip().rpartition("\n\n")[2].split())
    assert re.fullmatch(ANSWERS[command], answer), answer
    assert all(len(line) <= width for line in shown.splitlines())


def test_a_long_path_leaves_a_machine_one_table_at_80_columns() -> None:
    path = "/home/somebody/project/.venv/lib/python3.11/site-packages/nvidia/cu13/bin/cuobjdump"
    found = Check("software", "cuobjdump", "good", path, "what kernels compile to", None)
    lines = shown(*report_checks([found]), width=80).splitlines()
    (line,) = (line for line in lines if "what kernels" in line)
    assert line.split("  ")[1:3] == ["cuobjdump", "…/nvidia/cu13/bin/cuobjdump"]


def test_a_machine_is_summed_up_by_whether_a_bench_can_run() -> None:
    def check(status: Status) -> Check:
        return Check("machine", "CPU", status, "there", "everything", None)

    good = [check("good"), check("good"), check("missing")]
    assert last_words(list(report_checks(good))) == (
        "✓ dsv4kv bench can run here: of 3 checks 2 good, 1 missing"
    )
    *_, last = report_checks([*good, check("broken")])
    assert last == Finding(
        "bad", "dsv4kv bench cannot run here: of 4 checks 2 good, 1 missing, 1 broken"
    )
