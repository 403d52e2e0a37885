"""Result files of benchmarks become runs with the requests and times that they say.

Fields are those of AIPerf 0.13 (and, in its documentation's older example, before), guidellm 0.3
and 0.8, and InferenceX's ``utils/process_result.py``; numbers without a source are made up.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.errors import RecordError, TraceError
from dsv4kv.replay.clock.measured import read_results
from dsv4kv.traces import detect_format, read_trace

Row = dict[str, Any]


def aiperf(start_ms: int, tokens: int, out: int, ttft: float, itl: float, **when: Any) -> Row:
    latency = ttft + itl * (out - 1)
    values = {
        "input_sequence_length": (tokens, "tokens"), "output_sequence_length": (out, "tokens"),
        "time_to_first_token": (ttft, "ms"), "inter_token_latency": (itl, "ms"),
        "request_latency": (latency, "ms"),
    }  # fmt: skip
    start = 1_759_813_207_532_900_363 + start_ms * 10**6
    times = {"request_start_ns": start, "request_end_ns": start + int(latency * 1e6)}
    return {
        "metadata": times | {"x_request_id": f"{start}", "benchmark_phase": "profiling"} | when,
        "metrics": {name: {"value": v, "unit": unit} for name, (v, unit) in values.items()},
        "error": None,
    }


# the documentation's records, shortened: working-with-profile-exports.md
DOCUMENTED = aiperf(0, 550, 9, 255.886568, 5.2048325)
CANCELLED = {
    "metadata": {"request_start_ns": 1_759_879_161_119_147_826, "was_cancelled": True},
    "metrics": {"error_isl": {"value": 550, "unit": "tokens"}},
    "error": {"code": 499, "type": "RequestCancellationError", "message": "cancelled"},
}
OLDER = {
    "metadata": {"timestamp_ns": 1_759_522_419_159_192_408, "credit_phase": "profiling"},
    "metrics": {
        "input_sequence_length": {"value": 550, "unit": "tokens"},
        "ttft": {"value": 1680.543782, "unit": "ms"},
        "request_latency": {"value": 7936.968269, "unit": "ms"},
        "output_sequence_length": {"value": 193, "unit": "tokens"},
        "inter_token_latency": {"value": 32.585544203124996, "unit": "ms"},
    },
    "error": None,
}
STEADY = [aiperf(n * 1000, 1000 + n, 11, 200.0, 80.0) for n in range(4)]
CLOSED = [aiperf(n // 2 * 1000, 1000, 11, 200.0, 80.0) for n in range(8)]
WARM = [aiperf(-9000, 7, 2, 1.0, 1.0, benchmark_phase="warmup"), *CLOSED]


def guidellm(strategy: Row, old: bool = False, sampled: bool = False) -> Row:
    request = {
        "prompt_tokens": 512, "output_tokens": 128, "request_latency": 2.0,
        "time_to_first_token_ms": 200.0, "inter_token_latency_ms": 20.0,
    }  # fmt: skip
    start = "start_time" if old else "request_start_time"
    good = [request | {start: 100.0 + n // 4 * 2.0} for n in range(8)]
    totals = {"successful": 8, "incomplete": 2, "errored": 1, "total": 11}
    benchmark = {
        "args" if old else "config": {"strategy": strategy},
        "requests": {"successful": good[: 2 if sampled else 8], "incomplete": [], "errored": []},
        "duration": 4.0,
    }
    held = {"request_totals": totals}
    return benchmark | ({"metrics": {}, **held} if old else {"metrics": held})


FOUR = {"type_": "concurrent", "streams": 4}
INFERENCEX = {
    "hw": "h200", "tp": 8, "ep": 1, "dp_attention": "false", "conc": 4, "isl": 1024, "osl": 1024,
    "model": "deepseek-ai/DeepSeek-V4-Pro", "framework": "sglang", "precision": "fp8",
    "tput_per_gpu": 51.2, "output_tput_per_gpu": 25.6, "median_ttft": 0.3, "median_tpot": 0.019,
    "mean_ttft": 0.31, "mean_tpot": 0.02, "p99_ttft": 0.9, "p99_tpot": 0.05, "mean_intvty": 50.0,
}  # fmt: skip
NODES = INFERENCEX | {"is_multinode": True, "num_prefill_gpu": 8, "num_decode_gpu": 24}
ROW = {k: v for k, v in INFERENCEX.items() if "t_" not in k and "_t" not in k}
NESTED = ROW | {"metrics": {k: v for k, v in INFERENCEX.items() if k not in ROW}}

# documents, requests, most at once, seconds, median of TTFT and TPOT in ms
RUNS: dict[str, tuple[Any, int, int | None, float, float, float]] = {
    "AIPerf's documented record": ([DOCUMENTED, CANCELLED], 1, 1, 0.2975, 255.887, 5.2048),
    "AIPerf before 0.2": ([CANCELLED, OLDER], 1, 1, 7.937, 1680.544, 32.5855),
    "AIPerf, one after the other": (STEADY, 4, 1, 4.0, 200.0, 80.0),
    "AIPerf, two at once": (CLOSED, 8, 2, 4.0, 200.0, 80.0),
    "AIPerf with a warm-up": (WARM, 8, 2, 4.0, 200.0, 80.0),
    "guidellm 0.8": ({"benchmarks": [guidellm(FOUR)]}, 8, 4, 4.0, 200.0, 20.0),
    "guidellm 0.3": ({"benchmarks": [guidellm(FOUR, old=True)]}, 8, 4, 4.0, 200.0, 20.0),
    "guidellm, synchronous": (
        {"benchmarks": [guidellm({"type_": "synchronous"})]}, 8, 1, 4.0, 200.0, 20.0,
    ),
    "InferenceX": (INFERENCEX, 40, 4, 200.0, 300.0, 19.0),
    "InferenceX, several nodes": ([NODES], 40, 4, 50.0, 300.0, 19.0),
    "InferenceX, a row of its database": (NESTED, 40, 4, 200.0, 300.0, 19.0),
}  # fmt: skip


def write(folder: Path, documents: Any) -> Path:
    """Lines of a list, else one document over many lines."""
    path = folder / "result.json"
    lines = [json.dumps(each) for each in documents] if isinstance(documents, list) else ()
    path.write_text("\n".join(lines) if lines else json.dumps(documents, indent=2), "utf-8")
    return path


@pytest.mark.parametrize("name", RUNS)
def test_a_result_is_the_run_that_it_says(name: str, tmp_path: Path) -> None:
    documents, requests, most, seconds, ttft, tpot = RUNS[name]
    (run,) = read_results([write(tmp_path, documents)])
    assert (len(run.requests), run.concurrency) == (requests, most)
    assert run.duration_s == pytest.approx(seconds, rel=1e-3)
    medians = {latency: s for latency, share, s in run.latencies if share == 50}
    assert medians == pytest.approx({"ttft": ttft / 1e3, "tpot": tpot / 1e3}, rel=1e-4)
    if name.startswith("InferenceX"):  # which has no requests one by one
        with pytest.raises(TraceError, match="dsv4kv replay calibrate reads it"):
            list(read_trace(tmp_path / "result.json"))
        return
    trace = list(read_trace(tmp_path / "result.json"))
    assert detect_format(tmp_path / "result.json") == "results"
    lengths = sorted((each.input_tokens, each.output_tokens) for each in run.requests)
    assert sorted((each.input_tokens, each.output_tokens) for each in trace) == lengths
    assert trace[0].arrival_s == 0.0


def test_requests_that_come_by_a_rate_keep_their_times(tmp_path: Path) -> None:
    rows = [aiperf(n * n * 900, 100, 11, 200.0, 80.0) for n in range(1, 5)]
    (run,) = read_results([write(tmp_path, rows)])
    assert run.concurrency is None
    arrivals = [each.arrival_s for each in run.requests]
    assert arrivals == pytest.approx([0.0, 2.7, 7.2, 13.5], abs=1e-6)
    (timed,) = read_results(
        [write(tmp_path, {"benchmarks": [guidellm({"type_": "constant", "rate": 2.0})]})]
    )
    assert timed.concurrency is None


def test_every_benchmark_of_a_guidellm_sweep_is_a_run(tmp_path: Path) -> None:
    sweep = [guidellm({"type_": "concurrent", "streams": n}) for n in (1, 4, 16)]
    runs = read_results([write(tmp_path, {"benchmarks": sweep})])
    assert [run.concurrency for run in runs] == [1, 4, 16]
    path = write(tmp_path, {"benchmarks": sweep})
    assert detect_format(path) == "results"
    assert [r.arrival_s for r in read_trace(path)][::4] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


REFUSED = {
    "AIPerf's summary": (
        {"request_count": {"avg": 40.0}, "request_latency": {"unit": "ms", "avg": 1000.0}},
        "give the profile_export.jsonl",
    ),
    "AIPerf, all cancelled": ([CANCELLED, CANCELLED], "none of its 2 requests succeeded"),
    "AIPerf, a field gone": (
        [{"metadata": {}, "metrics": DOCUMENTED["metrics"]}], "not as its tool writes it",
    ),
    "guidellm, no metrics": ({"benchmarks": [{"requests": {}}]}, "'metrics' is missing"),
    "guidellm, a sample": ({"benchmarks": [guidellm(FOUR, sampled=True)]}, "kept 2 of its 8"),
    "guidellm, no list": ({"benchmarks": 3}, "not as its tool writes it"),
    "InferenceX, no lengths": (
        {k: v for k, v in INFERENCEX.items() if k != "isl"}, "says no lengths of prompts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_result_that_says_too_little_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    documents, sentence = REFUSED[name]
    path = write(tmp_path, documents)
    with pytest.raises(RecordError, match=sentence):
        read_results([path])
    with pytest.raises(TraceError, match=sentence):
        list(read_trace(path))


CASES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "cases"


@pytest.mark.skipif(not CASES.exists(), reason="the published cases are not on this machine")
def test_the_published_cases_are_read() -> None:
    turns = CASES / "20_aiperf_multiturn_trace" / "trace.jsonl"
    assert detect_format(turns) == "mooncake-delta"
    assert sum(request.input_tokens for request in read_trace(turns)) == 62_004
    (run,) = read_results([CASES / "23_aiperf_export" / "profile_export.jsonl"])
    assert [(r.input_tokens, r.output_tokens) for r in run.requests] == [(550, 193)] * 2


@pytest.mark.parametrize(
    "odd",
    [
        {"input_lens": [64]}, {"input_lens": 64}, {"output_lens": [8, "8"]},
        {"output_lens": [8, 2**40]}, {"start_times": [0.0, math.inf]}, {"errors": 1},
        {"errors": [""]}, {"duration": "9"},
    ],
)  # fmt: skip
def test_a_column_that_is_none_is_a_sentence(tmp_path: Path, odd: dict[str, Any]) -> None:
    whole = {"input_lens": [64, 64], "output_lens": [8, 8], "start_times": [0.0, 1.0]}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(whole | odd))
    with pytest.raises(TraceError):
        list(read_trace(path))
