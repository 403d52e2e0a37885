"""Result files of the engines' benchmarks, whole and lacking fields."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.replay.clock.fit import open_scenes
from dsv4kv.replay.clock.measured import Measured, read_results
from tests.replay.clock.servers import SETTINGS, as_sglang, as_vllm, lengths, write_lines
from tests.traces.test_results import INFERENCEX

SEEN: dict[str, Any] = {
    "input_lens": [each.input_tokens for each in lengths(4)],
    "output_lens": [each.output_tokens for each in lengths(4)],
    "start_times": [5.0, 5.5, 6.5, 7.0],
    "ttfts": [0.1, 0.2, 0.3, 0.4],
    "itls": [[0.01] * (each.output_tokens - 1) for each in lengths(4)],
    "duration": 9.5,
    "completed": 4,
    "max_concurrency": 2,
}
SGLANG = as_sglang(SEEN, detailed=True, longest=8192, most=256)
VLLM = as_vllm(SEEN, detailed=True)


def read(tmp_path: Path, *documents: dict[str, Any]) -> list[Measured]:
    return read_results([write_lines(tmp_path / "result.jsonl", documents)])


@pytest.mark.parametrize(("document", "engine"), [(SGLANG, "sglang"), (VLLM, "vllm")])
def test_a_run_with_details_is_read_request_by_request(
    tmp_path: Path, document: dict[str, Any], engine: str
) -> None:
    (run,) = read(tmp_path, document)
    assert (run.engine, run.concurrency, run.duration_s) == (engine, 2, 9.5)
    assert [each.input_tokens for each in run.requests] == SEEN["input_lens"]
    assert [each.output_tokens for each in run.requests] == SEEN["output_lens"]
    found = {(name, share): seconds for name, share, seconds in run.latencies}
    assert found["ttft", 50] == pytest.approx(0.25)
    assert found["tpot", 50] == pytest.approx(0.01)
    assert run.assumed == ""


def test_sglangs_lengths_are_drawn_again_where_they_are_not_in_the_file(tmp_path: Path) -> None:
    document = as_sglang(SEEN, detailed=False, longest=8192, most=256)
    (run,) = read(tmp_path, document)
    assert [each.input_tokens for each in run.requests] == SEEN["input_lens"]
    assert "drawn as the benchmark does" in run.assumed
    found = {(name, share): seconds for name, share, seconds in run.latencies}
    assert found["tpot", 50] == pytest.approx(0.01)


def test_requests_that_failed_are_left_out(tmp_path: Path) -> None:
    (run,) = read(tmp_path, SGLANG | {"errors": ["", "timeout", "", ""]})
    assert len(run.requests) == 3
    assert ("ttft", 50, 0.3) in run.latencies


@pytest.mark.parametrize("gone", ["itls", "ttfts", "errors", "max_concurrency", "start_times"])
def test_a_field_that_is_missing_takes_its_quantity_alone(tmp_path: Path, gone: str) -> None:
    (run,) = read(tmp_path, {key: value for key, value in VLLM.items() if key != gone})
    names = {name for name, *_ in run.latencies}
    assert names == {"ttft", "tpot"} - {{"itls": "tpot", "ttfts": "ttft"}.get(gone, "")}
    assert run.concurrency == (4 if gone == "max_concurrency" else 2)


def test_requests_that_come_by_a_rate_come_when_they_came(tmp_path: Path) -> None:
    (run,) = read(tmp_path, VLLM | {"max_concurrency": None, "request_rate": 2.0})
    assert run.concurrency is None
    assert [each.arrival_s for each in run.requests] == [0.0, 0.5, 1.5, 2.0]
    (drawn,) = read(
        tmp_path, as_vllm(SEEN, detailed=False) | {"max_concurrency": None, "request_rate": 2.0}
    )
    assert "arrivals drawn by request_rate" in drawn.assumed


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no JSON"),
        ("[1]", "a JSON object is wanted"),
        ('{"completed": 4}', "has no completed and no duration"),
        ('{"completed": 4, "duration": 2}', "how long its requests are"),
        ("", "no run of a benchmark"),
        (
            '{"completed": 4, "duration": 2, "total_input_tokens": 40, "total_output_tokens": 8}',
            "nothing to compare with",
        ),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RecordError, match=sentence):
        read_results([tmp_path / "result.json"])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"completed": 0}, "completed is 0: a number from 1 on"),
        ({"random_input_len": 1e-320}, "random_input_len is 1e-320"),
        ({"output_lens": [9, 9, 9, 10**9]}, "a request of 1,000,000,000 output tokens does not"),
        ({"output_lens": [0.5] * 4}, "none of its requests succeeded"),
        ({"max_concurrency": None, "request_rate": 1e-300, "start_times": None}, "arrive over"),
        ({"completed": 10**9}, "completed is 1,000,000,000: runs of up to 1,000,000 requests"),
        ({"median_ttft_ms": -5.0}, "median_ttft_ms is -5.0"),
        ({"ttfts": [0.1, 0.2]}, "ttfts is not a list of 4"),
        ({"start_times": [0, None, 2, 3]}, "start_times has something else than numbers"),
        ({"ttfts": [0.0] * 4}, "a ttft of 0 s: times are above 0"),
        ({"itls": [[1e-6] * 9] * 4}, r"a TPOT of \S+ ms: no model is that fast"),
    ],
)
def test_what_no_benchmark_writes_is_refused_by_its_name(
    tmp_path: Path, changed: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RecordError, match=sentence):
        read(tmp_path, SGLANG | changed)


def test_a_row_of_inferencex_has_its_engine_and_its_gpu(tmp_path: Path) -> None:
    (run,) = read(tmp_path, INFERENCEX | {"hw": "b200"})
    assert (run.engine, run.gpu) == ("sglang", "b200")
    shown = CliRunner().invoke(app, ["explain", str(tmp_path / "result.jsonl")]).stdout
    assert "Benchmark of sglang  assumed: 10 requests for each concurrent one" in shown
    assert "--gpu b200 --name mine" in shown
    with pytest.raises(RecordError, match="is not as its tool writes it"):
        read(tmp_path, INFERENCEX | {"tput_per_gpu": 0})


def test_a_run_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"jsonl:3 is the same run as result\.jsonl:1"):
        read(tmp_path, SGLANG, VLLM, SGLANG)


def test_a_compressed_result_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"
    content = gzip.compress(json.dumps(SGLANG).encode())
    path.write_bytes(content)
    assert read_results([path]) == read(tmp_path, SGLANG)
    for damaged in (content[:-9], content[:40] + b"x" + content[41:], content[:2]):
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=r"its gzip data is damaged"):
            read_results([path])


def test_more_tokens_a_step_than_the_server_drafts_are_refused(tmp_path: Path) -> None:
    runs = read(tmp_path, SGLANG | {"accept_length": 2.5})
    with pytest.raises(ConfigError, match=r"yields 2\.5 tokens of a request.*=0 it"):
        open_scenes(None, SETTINGS, runs)
    assert open_scenes(None, [*SETTINGS, "scheduler.speculative.draft_tokens=3"], runs)
