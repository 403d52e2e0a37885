"""Result files of benchmarks, in the fields of the engines' own.

``sglang.bench_serving --output-file`` appends a JSON line a run; ``vllm bench serve
--save-result`` writes one object a file, or lines with ``--append-result`` (read in SGLang 0.5.23
and vllm 0.33). Others are written in their fields:

* AIPerf's ``profile_export.jsonl``, a line for every request (0.13; earlier names of fields, too);
* guidellm's ``benchmarks.json`` (0.3 and 0.8), a run for every benchmark;
* InferenceX's rows (``utils/process_result.py``), times in seconds, 10 prompts for each ``conc``.
"""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

from dsv4kv.traces import files as tf
from dsv4kv.traces.formats import TraceFormat
from dsv4kv.traces.request import Request
from dsv4kv.units import UNITS_PER_SECOND

Run = dict[str, Any]
_PER_SECOND = UNITS_PER_SECOND | {"sec": 1, "seconds": 1}
_INFERENCEX_ROUNDS = 10
_FULL = 0.75
"""Mean requests in flight, as a share of the peak: more means a client with a constant load."""


class _Timed(NamedTuple):
    """A request that succeeded; times in seconds, None where nothing was streamed."""

    start_s: float
    input_tokens: int
    output_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    latency_s: float


def as_runs(documents: Sequence[Run]) -> list[Run]:
    """The runs that a file's documents are of; another kind's is its own; raises ``Defect``."""
    try:
        return list(_runs(documents))
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError, IndexError) as error:
        if isinstance(error, tf.Defect):
            raise
        lacking = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise tf.Defect(f"the benchmark's file is not as its tool writes it ({lacking})") from None


def _runs(documents: Sequence[Run]) -> Iterator[Run]:
    if documents and all({"metadata", "metrics"} <= each.keys() for each in documents):
        phases = ("benchmark_phase", "credit_phase")
        lines = [
            each
            for each in documents
            if "warmup" not in [each["metadata"].get(phase) for phase in phases]
        ]
        found = [row for row in map(_read_aiperf, lines) if row]
        yield _of_requests(found, len(lines) - len(found))
        return
    for document in documents:
        metrics = document.get("metrics")
        row = document | metrics if isinstance(metrics, dict) else document
        if "benchmarks" in document:
            yield from map(_guidellm, document["benchmarks"])
        elif "tput_per_gpu" in row and "conc" in row:
            if not {"isl", "osl"} <= row.keys():
                raise tf.Defect(
                    "this row of InferenceX says no lengths of prompts and answers (isl, osl)"
                )
            yield _inferencex(row)
        elif isinstance(document.get("request_latency"), dict):
            raise tf.Defect(
                "this is AIPerf's summary: give the profile_export.jsonl that was written with "
                "it, a line for every request"
            )
        else:
            yield document


def _read_aiperf(record: Run) -> _Timed | None:
    """A request of AIPerf's export; None if it failed or was cancelled."""
    when, metrics = record["metadata"], record["metrics"]
    if record.get("error") or not metrics.get("output_sequence_length"):
        return None
    start_ns = when.get("request_start_ns", when.get("timestamp_ns"))
    return _Timed(
        start_ns / 1e9,
        int(metrics["input_sequence_length"]["value"]),
        int(metrics["output_sequence_length"]["value"]),
        _seconds(metrics.get("time_to_first_token", metrics.get("ttft"))),
        _seconds(metrics.get("inter_token_latency")),
        _seconds(metrics["request_latency"]) or 0.0,
    )


def _seconds(metric: Mapping[str, Any] | None) -> float | None:
    if metric is None or metric.get("value") is None:
        return None
    return float(metric["value"]) / _PER_SECOND[metric["unit"]]


def _guidellm(benchmark: Run) -> Run:
    requests, metrics = benchmark["requests"], benchmark["metrics"]
    good = requests["successful"]
    total = benchmark.get("request_totals") or metrics["request_totals"]
    count = total["successful"]
    config = benchmark.get("config") or benchmark.get("args") or {}
    strategy = config.get("strategy") or {}
    kind = strategy.get("type_")
    load = {
        "max_concurrency": 1 if kind == "synchronous" else strategy.get("streams"),
        "request_rate": strategy.get("rate"),
    }
    if len(good) != count:
        raise tf.Defect(
            f"guidellm kept {len(good):,} of its {count:,} requests: run it without a sample"
        )
    started = "start_time" if good and "start_time" in good[0] else "request_start_time"
    rows = [
        _Timed(
            float(request[started]),
            int(request["prompt_tokens"]),
            int(request["output_tokens"]),
            _milliseconds(request.get("time_to_first_token_ms")),
            _milliseconds(request.get("inter_token_latency_ms")),
            float(request["request_latency"]),
        )
        for request in good
    ]
    return _of_requests(rows, total["errored"]) | load


def _milliseconds(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def _inferencex(row: Run) -> Run:
    count = int(row["conc"]) * _INFERENCEX_ROUNDS
    gpus = sum(int(row.get(f"num_{role}_gpu") or 0) for role in ("prefill", "decode"))
    gpus = gpus or int(row["tp"])
    duration_s = count * (row["isl"] + row["osl"]) / (row["tput_per_gpu"] * gpus)
    times = {
        f"{name}_ms": seconds * 1e3
        for name, seconds in row.items()
        if name.endswith(("_ttft", "_tpot")) and seconds is not None
    }
    return times | {
        "framework": row.get("framework"),
        "hw": row.get("hw"),
        "completed": count,
        "failed": 0,
        "duration": duration_s,
        "total_input_tokens": round(row["isl"] * count),
        "total_output_tokens": round(row["osl"] * count),
        "max_concurrency": int(row["conc"]),
        "assumed": f"{_INFERENCEX_ROUNDS} requests for each concurrent one, of the given lengths",
    }


def _of_requests(rows: Sequence[_Timed], failed: int) -> Run:
    """A run in the fields of ``vllm bench serve``."""
    if not rows:
        raise tf.Defect(f"none of its {failed:,} requests succeeded")
    rows = sorted(rows)
    begin = rows[0].start_s
    duration_s = max(each.start_s + each.latency_s for each in rows) - begin
    lengths = [[each.input_tokens for each in rows], [each.output_tokens for each in rows]]
    run: Run = {
        "completed": len(rows),
        "failed": failed,
        "duration": duration_s,
        "input_lens": lengths[0],
        "output_lens": lengths[1],
        "start_times": [each.start_s - begin for each in rows],
        "total_input_tokens": sum(lengths[0]),
        "total_output_tokens": sum(lengths[1]),
    }
    ends = [(each.start_s + each.latency_s, -1) for each in rows]
    changes = sorted(ends + [(each.start_s, 1) for each in rows])
    most = max(accumulate(change for _, change in changes))
    busy_s = sum(each.latency_s for each in rows)
    closed = busy_s >= _FULL * most * duration_s
    run |= {"max_concurrency": most} if closed else {"request_rate": len(rows) / duration_s}
    ttfts = [each.ttft_s for each in rows if each.ttft_s is not None]
    if len(ttfts) == len(rows):
        run |= {"ttfts": ttfts, "median_ttft_ms": median(ttfts) * 1e3}
    tpots = [each.tpot_s for each in rows if each.tpot_s is not None]
    if tpots:
        gaps = [(each.tpot_s or 0.0) * (each.output_tokens - 1) for each in rows]
        run |= {"itls": [[gap] if gap else [] for gap in gaps]}
        run |= {"median_tpot_ms": median(tpots) * 1e3}
    return run


def _read_results(lines: tf.TraceLines, _: tf.ReadOptions) -> Iterator[Request]:
    offset_s = 0.0
    for run in as_runs(list(tf.json_records(lines))):
        inputs, outputs = run.get("input_lens"), run.get("output_lens")
        if not inputs or not outputs:
            raise tf.Defect(
                "the result has no requests one by one: dsv4kv replay calibrate reads it; a trace "
                "needs every request (--output-details, --save-detailed, AIPerf's "
                "profile_export.jsonl)"
            )
        count = len(inputs) if isinstance(inputs, list) else 0
        starts = _numbers(run, "start_times", count, tf.MOST_S) or [0.0] * count
        errors = run.get("errors") or [""] * count
        if not isinstance(errors, list) or len(errors) != count:
            raise tf.Defect(f"errors are not those of {count} requests")
        tokens = [_numbers(run, f"{of}_lens", count, tf.MAX_TOKENS) for of in ("input", "output")]
        begin, end = min(starts), max(starts)
        for start, tokens_in, tokens_out, number in sorted(
            zip(starts, *tokens, range(count), strict=True)
        ):
            if not errors[number] and tokens_in > 0:
                yield Request(offset_s + start - begin, int(tokens_in), int(tokens_out))
        offset_s += max(_number(run.get("duration") or 0.0, "duration", tf.MOST_S), end - begin)


def _numbers(run: Run, name: str, count: int, most: int) -> list[float]:
    column = run.get(name) or []
    if not isinstance(column, list) or len(column) not in (0, count):
        raise tf.Defect(f"{name} is no list of {count} numbers")
    return [_number(each, name, most) for each in column]


def _number(value: Any, name: str, most: int) -> float:
    if type(value) not in (int, float) or not 0 <= value <= most:
        raise tf.Defect(f"{name} has {reprlib.repr(value)}, expected a number from 0 to {most:,}")
    return float(value)


RESULTS = TraceFormat(
    _read_results,
    frozenset(
        ["metrics", "benchmarks", "request_latency", "tput_per_gpu", "completed", "input_lens"]
    ),
    "a benchmark's result with every request: AIPerf's profile_export.jsonl, guidellm's "
    "benchmarks.json, sglang.bench_serving --output-details, vllm bench serve --save-detailed",
)
