"""The table's language: what a condition says, what is not known, and what is refused."""

import json
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.diagnose import subjects as subject
from dsv4kv.diagnose.faults import Condition, Fault, Truth, judge, known_engines, load_faults
from dsv4kv.diagnose.subjects import Subject, facts_of, read_subjects
from tests.diagnose.faults.results import VLLM

ROW: dict[str, Any] = {
    "id": "a-fault", "engine": "vllm", "versions": ">=0.21,<0.23", "when": [{"flag": "--a"}],
    "symptom": "It goes wrong.", "effect": "0 % found", "workaround": "Take another.",
    "source": "https://github.com/vllm-project/vllm/issues/1", "seen": "2026-11-01",
    "until": "2027-11-01",
}  # fmt: skip
SERVER = Subject(
    "it", "command", "vllm", "0.22", {"--block-size": "128", "--on": ""}, {"V": "1"},
    {"tp": "8"}, text="one line\nanother", model="v4-flash", arch="sm_90",
)  # fmt: skip
TODAY = date(2026, 11, 23)
LOGGED = (
    "(APIServer pid=4) INFO 05-04 17:53:07 [utils.py:233] non-default args: {'max_num_seqs': 4}\n"
)


def fault(**changes: Any) -> Fault:
    return Fault.model_validate(ROW | changes)


@pytest.mark.parametrize(
    ("condition", "truth"),
    [
        ({"flag": "--on"}, True), ({"flag": "--off"}, False),
        ({"flag": "--off", "given": False}, True), ({"flag": "--block_size", "is": ["128"]}, True),
        ({"flag": "--block-size", "above": 128}, False),
        ({"flag": "--block-size", "below": 129}, True), ({"flag": "--on", "above": 0}, False),
        ({"variable": "V", "has": ["1"]}, True), ({"input": "tp", "is": ["8"]}, True),
        ({"field": "anything"}, False), ({"line": "^ano"}, True), ({"line": "^ther"}, False),
        ({"model": ["v4"]}, True), ({"model": ["v4.1", "v3.2"]}, False),
        ({"gpu": ["sm_90"]}, True), ({"any": [{"flag": "--off"}, {"flag": "--on"}]}, True),
        ({"none": [{"flag": "--off"}, {"flag": "--on"}]}, False),
    ],
)  # fmt: skip
def test_a_condition_says_one_thing(condition: dict[str, Any], truth: Truth) -> None:
    assert Condition.model_validate(condition).holds(SERVER) is truth


@pytest.mark.parametrize(
    "condition",
    [{"flag": "--on"}, {"model": ["v4"]}, {"gpu": ["sm_90"]}, {"none": [{"model": ["v4"]}]}],
)
def test_of_what_is_not_known_nothing_is_true_or_false(condition: dict[str, Any]) -> None:
    assert Condition.model_validate(condition).holds(Subject("it", "log", "vllm")) is None


@pytest.mark.parametrize(
    ("versions", "version", "truth"),
    [
        (">=0.21,<0.23", "0.21", True), (">=0.21,<0.23", "v0.22.1rc2", True),
        (">=0.21,<0.23", "0.23.0", False), ("<=0.5.20", "0.5.9", True),
        ("==0.27.1", "0.27", False), ("*", None, True), (">=0.21", None, None),
    ],
)  # fmt: skip
def test_versions_are_compared_by_number(versions: str, version: str | None, truth: Truth) -> None:
    assert fault(versions=versions).covers(version) is truth


ALL = [{"flag": "--a"}, {"model": ["v4"]}, {"gpu": ["sm_90"]}]
UNKNOWN = "the version is not known: vllm >=0.21,<0.23 has it"


@pytest.mark.parametrize(
    ("engine", "version", "when", "today", "doubts"),
    [
        ("vllm", "0.22", ALL[:1], TODAY, [()]),
        ("sglang", "0.22", ALL[:1], TODAY, []),
        ("vllm", None, ALL[:1], TODAY, [(UNKNOWN,)]),
        ("vllm", "0.22", ALL, TODAY,
         [("the model is not known", "the GPU is not known: add --gpu")]),
        ("vllm", "0.22", ALL[:1], date(2027, 11, 2), [("vllm#1 was last checked in 2026-11",)]),
    ],
)  # fmt: skip
def test_a_finding_says_what_is_not_known(
    engine: str, version: str | None, when: list[Any], today: date, doubts: list[tuple[str, ...]]
) -> None:
    subject = Subject("it", "command", engine, version, {"--a": ""})
    assert [each.doubts for each in judge([subject], [fault(when=when)], today)] == doubts


def test_every_shipped_row_has_a_name_of_its_own_a_thread_and_versions() -> None:
    faults = load_faults()
    assert len({each.id for each in faults}) == len(faults) >= 30
    for each in faults:
        assert each.source.startswith("https://github.com/")
        assert each.covers("0.0.1") in (True, False)
        assert each.id.startswith(f"{each.engine}-")
        assert each.engine in known_engines()
        assert each.seen < each.until
        for condition in each.when:
            check_condition(condition)


THINGS = {"flag", "variable", "input", "field", "line", "model", "gpu", "any", "none"}


def check_condition(condition: Condition) -> None:
    """It is about one thing; a predicate, one at most, is of a flag, variable, input or field."""
    given = condition.model_fields_set
    (thing,) = given & THINGS
    assert len(given) == 1 or (len(given) == 2 and thing in {"flag", "variable", "input", "field"})
    re.compile(condition.line or "")
    for each in (*(condition.any or ()), *(condition.none or ())):
        check_condition(each)


def test_what_follows_from_a_result() -> None:
    run = {"completed": 8, "num_prompts": 10, "max_concurrency": 4, "dataset_name": "random",
           "total_input_tokens": 8000, "median_ttft_ms": 100.0, "output_lens": [4, 4, 2, 4],
           "errors": ["", "x"]}  # fmt: skip
    facts = facts_of(run, run | {"median_ttft_ms": 400.0})
    assert facts["failed_requests"] == "2"
    assert (facts["rounds"], facts["prompt_tokens_per_s"]) == ("2", "10000")
    assert (facts["repeats"], facts["repeats_ttft"]) == ("yes", "0.25")
    assert (facts["random_tokens"], facts["full_outputs"]) == ("yes", "0.75")


def test_a_result_longer_than_any_line_of_a_log_is_one_of_a_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(VLLM | {"generated_texts": ["x" * 3_000_000]}), encoding="utf-8")
    (found,) = read_subjects(str(path))
    assert (found.kind, found.fields["failed_requests"]) == ("result", "0")


@pytest.mark.parametrize(
    ("line", "engine", "model"),
    [
        ("DeepseekV4ForCausalLM bytes_per_full_token=7705.45, full_token=852992", "sglang", "v4"),
        ("initializing, n_slots = 4, n_ctx_slot = 8192, kv_unified = 'false'", "llama.cpp", None),
    ],
)
def test_a_log_is_of_the_engine_whose_sizes_it_prints(
    line: str, engine: str, model: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "start.log"
    path.write_text(f"[2026-08-10 09:47:28 DP0 TP0 EP0] {line}\n", encoding="utf-8")
    (found,) = read_subjects(str(path))
    assert (found.kind, found.engine, found.model) == ("log", engine, model)


def test_a_logs_beginning_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_MOST_TEXT", 1 << 20)
    path = tmp_path / "vllm.log"
    path.write_text(LOGGED + f"{'INFO 05-04 17:53:08 x' * 4_500}\n" * 30, encoding="utf-8")
    (found,) = read_subjects(str(path))
    assert found.flags == {"--max-num-seqs": "4"}
    assert len(found.text) < 1_200_000


def test_a_number_that_nothing_can_print_is_shown_as_it_is_written(tmp_path: Path) -> None:
    path, number = tmp_path / "vllm.log", "0x" + "f" * 5_000
    path.write_text(LOGGED.replace("4}", f"{number}}}"), encoding="utf-8")
    (found,) = read_subjects(str(path))
    assert found.flags == {"--max-num-seqs": number}


@pytest.mark.parametrize(
    "text",
    [
        LOGGED + "\n".join([" " * 400] * 15_000), LOGGED + "sparse_mla" * 90_000,
        LOGGED + "flashinfer-cubin version (" * 40_000,
        LOGGED + "sglang\n" + "is installed with version " * 40_000,
        LOGGED.replace("4}", "4, " + "a" * 900_000),
    ],
    ids=["blanks", "names", "packages", "installed", "an echoed word"],
)  # fmt: skip
def test_a_log_of_megabytes_is_searched_once(text: str, tmp_path: Path) -> None:
    (tmp_path / "start.log").write_text(text, encoding="utf-8")
    program = (
        "from datetime import date\n"
        "from dsv4kv.diagnose.subjects import read_subjects\n"
        "from dsv4kv.diagnose.faults import judge, load_faults\n"
        "judge(read_subjects('start.log'), load_faults(), date.today())"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=300)
