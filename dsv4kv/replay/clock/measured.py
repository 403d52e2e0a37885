"""Result files of benchmarks (``traces.results``), as the runs that they are of.

Files that lack some fields are read as far as possible. With ``--output-details`` (SGLang) and
``--save-detailed`` (vLLM) they have every request.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from dsv4kv.engines.names import FAMILIES, replayed_engines
from dsv4kv.errors import RecordError
from dsv4kv.files import Unparsable, parse_json, read_document
from dsv4kv.traces.files import Defect
from dsv4kv.traces.request import Request
from dsv4kv.traces.results import as_runs

Floats = NDArray[np.float64]

SHARES = (10, 25, 50, 75, 90)  # percentiles that are compared where every request is known

_STATISTICS = {"median": 50.0, "p50": 50.0, "p25": 25.0, "p75": 75.0, "p90": 90.0, "p95": 95.0}
_STATISTICS |= {"mean": math.nan}
"""Percentiles by name in a file without details; of a p99 of few requests nothing follows."""


@dataclass(frozen=True)
class Measured:
    """One run of a benchmark."""

    name: str  # file and line
    engine: str
    requests: Sequence[Request]  # what was sent, in order; arrivals where they came by themselves
    assumed: str  # what the file does not say about them, in words; empty if it says all
    concurrency: int | None  # max concurrency; None where requests came by themselves
    duration_s: float | None  # of the whole run; None where it is not said
    # measured times in seconds, as (name, percentile, seconds); percentile ``nan`` is the mean
    latencies: Sequence[tuple[str, float, float]]
    # tokens that a decode step yields for a request; None where it is not said
    accepted: float | None
    gpu: str = ""  # as the file calls it

    @property
    def quantities(self) -> list[tuple[str, float, float]]:
        """Everything measured: latencies, and ``throughput``, the seconds of the whole run."""
        whole = [("throughput", math.nan, self.duration_s)] if self.duration_s else []
        return [*self.latencies, *whole]


def read_results(paths: Sequence[Path]) -> list[Measured]:
    """All runs of some files; raises ``RecordError``, also where a run is there twice."""
    found = [run for path in paths for run in read_runs(path)]
    if not found:
        raise RecordError("no run of a benchmark is in these files: give results of one.")
    runs, seen = list[Measured](), dict[str, str]()
    for name, document in found:
        runs.append(_read_run(name, document))
        if (text := json.dumps(document, sort_keys=True)) in seen:
            raise RecordError(
                f"{name} is the same run as {seen[text]}, and one that is there twice would "
                "vouch for itself: give every run once."
            )
        seen[text] = name
    return runs


def read_runs(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every run of a file as it was written, named by file and line; raises ``RecordError``."""
    try:
        text = read_document(path, packed=True).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8 text, neither plain nor gzip")
        raise RecordError(f"{path} cannot be read ({why}); {_WANTED}") from error
    try:
        documents = [parse_json(text)]
    except Unparsable:
        documents = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                documents += [parse_json(line)] if line.strip() else []
            except Unparsable as error:
                raise RecordError(f"{path}:{number} is no JSON: {error}; {_WANTED}") from error
    rows = documents[0] if len(documents) == 1 and isinstance(documents[0], list) else documents
    for number, document in enumerate(rows, 1):
        if not isinstance(document, dict):
            raise RecordError(f"{path}, run {number}: a JSON object is wanted; {_WANTED}")
    try:
        runs = as_runs(rows)
    except Defect as defect:
        raise RecordError(f"{path}: {defect}; {_WANTED}") from None
    for number, run in enumerate(runs, 1):
        yield path.name if len(runs) == 1 else f"{path.name}:{number}", run


_WANTED = (
    "give what sglang.bench_serving --output-file, vllm bench serve --save-result, AIPerf, "
    "guidellm or InferenceX has written."
)


def _read_run(name: str, given: Mapping[str, Any]) -> Measured:
    said = str(given.get("framework") or "").lower()
    fields = {each: set(FAMILIES[each].result_fields) for each in replayed_engines()}
    engine = max(fields, key=lambda each: (each in said, len(fields[each] & set(given))))
    if not {"completed", "duration"} <= set(given):
        raise RecordError(f"{name} has no completed and no duration; {_WANTED}")
    _check(name, given)
    kept = _kept(given)
    if given.get("input_lens") and not kept:
        raise RecordError(f"{name}: none of its requests succeeded; {_WANTED}")
    requests, assumed = _requests(name, given, kept)
    measured = _latencies(given, kept)
    if not measured:
        raise RecordError(
            f"{name} has neither ttfts and itls nor statistics of them, as median_ttft_ms and "
            "median_tpot_ms: nothing to compare with."
        )
    for latency, _, seconds in measured:
        if not seconds > 0:
            raise RecordError(f"{name} has a {latency} of {seconds:g} s: times are above 0.")
        if latency == "tpot" and seconds < _LEAST_TPOT_S:
            raise RecordError(
                f"{name} has a TPOT of {seconds * 1e3:.2g} ms: no model is that fast, so answers "
                "were not streamed, or the number is not of a token."
            )
    return Measured(
        name,
        engine,
        requests,
        assumed,
        _concurrency(given),
        _number(given, "duration"),
        measured,
        _number(given, "accept_length", "spec_decode_acceptance_length"),
        str(given.get("hw") or "").lower(),
    )


_BY_REQUEST = ("input_lens", "output_lens", "ttfts", "itls", "errors", "start_times")
_COUNTS = ("completed", "max_concurrency", "random_input_len", "random_output_len")
_NEEDED = ("completed", "duration")
_LEAST_TPOT_S = 1e-4  # of no model yet, drafts included: what is replayed is bounded by it
_LONGEST_S = 1e8  # of a run: three years
MOST_REQUESTS = 1_000_000  # requests of a run that is read: all are replayed again and again


def _check(name: str, given: Mapping[str, Any]) -> None:
    """Refuse what no benchmark writes; null and an empty list count as missing."""
    for key in (*_COUNTS, "duration"):
        value, counts = given.get(key), key in _COUNTS
        good = _finite(value) and (value >= 1 if counts else value > 0)
        if (value is not None or key in _NEEDED) and not good:
            wanted = "a number from 1 on" if counts else "a number above 0"
            raise RecordError(f"{name}: {key} is {value!r}: {wanted} is wanted; {_WANTED}")
    if given["completed"] > MOST_REQUESTS:
        raise RecordError(
            f"{name}: completed is {given['completed']:,}: runs of up to {MOST_REQUESTS:,} "
            f"requests are read; {_WANTED}"
        )
    ratio = given.get("random_range_ratio")
    if ratio is not None and not (_finite(ratio) and 0 <= ratio <= 1):
        raise RecordError(f"{name}: random_range_ratio is {ratio!r}: 0 to 1 is wanted; {_WANTED}")
    for key, value in given.items():
        timed = key.endswith(("_ttft_ms", "_tpot_ms", "accept_length", "acceptance_length"))
        if timed and _finite(value) and value < 0:
            raise RecordError(f"{name}: {key} is {value!r}: no number below 0 is; {_WANTED}")
    listed = {key: value for key in _BY_REQUEST if (value := given.get(key))}
    inputs = listed.get("input_lens")
    requests = len(inputs) if isinstance(inputs, list) else None
    for key, values in listed.items():
        if not isinstance(values, list) or len(values) != (requests or len(values)):
            wanted = f"a list of {requests:,}, as input_lens is," if requests else "a list"
            raise RecordError(f"{name}: {key} is not {wanted} with a value for each; {_WANTED}")
        nested = values if key == "itls" else [values]
        numbers = [n for each in nested for n in (each if isinstance(each, list) else [None])]
        if key != "errors" and not all(_finite(n) and n >= 0 for n in numbers):
            raise RecordError(f"{name}: {key} has something else than numbers from 0; {_WANTED}")


def _finite(value: Any) -> TypeGuard[float]:
    """Whether it is a number (not a bool) that float and int64 hold."""
    return type(value) in (int, float) and abs(value) < 2**62


def _number(given: Mapping[str, Any], *keys: str) -> float | None:
    for key in keys:
        value = given.get(key)
        if _finite(value) and value > 0:
            return float(value)
    return None


def _concurrency(given: Mapping[str, Any]) -> int | None:
    """Most concurrent requests; None where they come by a rate and nothing holds them back."""
    most = _number(given, "max_concurrency")
    if most is not None:
        return int(most)
    if _number(given, "request_rate") is not None:
        return None
    return int(given["completed"])  # all at once


def _kept(given: Mapping[str, Any]) -> list[int]:
    inputs = given.get("input_lens")
    if not isinstance(inputs, list):
        return []
    errors = given.get("errors") or [""] * len(inputs)
    outputs = given.get("output_lens") or [1] * len(inputs)
    return [place for place in range(len(inputs)) if not errors[place] and outputs[place] >= 1]


def _requests(
    name: str, given: Mapping[str, Any], kept: Sequence[int]
) -> tuple[list[Request], str]:
    inputs, outputs, assumed = _lengths(name, given, kept)
    if max(outputs) * _LEAST_TPOT_S > given["duration"]:
        raise RecordError(
            f"{name}: a request of {max(outputs):,} output tokens does not end within the "
            f"{given['duration']:g} s of the run; {_WANTED}"
        )
    starts, rate = given.get("start_times"), _number(given, "request_rate")
    times = np.zeros(len(inputs))
    if _concurrency(given) is None and rate is not None:
        if isinstance(starts, list) and kept:
            times = np.array([starts[place] for place in kept], dtype=float)
            times -= times.min()
        else:
            gaps = np.random.default_rng(0).exponential(1 / rate, len(inputs))
            times, arrivals = np.cumsum(gaps) - gaps[0], "arrivals drawn by request_rate"
            assumed = f"{assumed}; {arrivals}" if assumed else arrivals
    if not times.max() <= _LONGEST_S:
        raise RecordError(f"{name}: its requests arrive over {times.max():g} s; {_WANTED}")
    rows = zip(times.tolist(), inputs, outputs, strict=True)
    return sorted((Request(*row) for row in rows), key=lambda each: each.arrival_s), assumed


def _lengths(
    name: str, given: Mapping[str, Any], kept: Sequence[int]
) -> tuple[list[int], list[int], str]:
    if kept and given.get("output_lens"):
        pairs = [(given["input_lens"][each], given["output_lens"][each]) for each in kept]
        return [max(1, int(i)) for i, _ in pairs], [int(o) for _, o in pairs], ""
    count = int(given["completed"])
    most = given.get("random_input_len"), given.get("random_output_len")
    ratio = given.get("random_range_ratio")
    if given.get("dataset_name", "random") == "random" and all((*most, ratio is not None)):
        generator = np.random.RandomState(1)  # the benchmark's own, with its default seed
        drawn = [
            generator.randint(min(max(int(longest * float(ratio or 0)), 1), longest),
                              longest + 1, count).tolist()
            for longest in (int(each or 0) for each in most)
        ]  # fmt: skip
        return drawn[0], drawn[1], "lengths drawn as the benchmark does with seed 1"
    totals = [
        _number(given, f"total_{side}_tokens", f"total_{side}") for side in ("input", "output")
    ]
    if None in totals or not count:
        raise RecordError(
            f"{name} says neither how long its requests are nor how long they are in all: run the "
            "benchmark with --output-details (SGLang) or --save-detailed (vLLM)."
        )
    means = [max(1, round((total or 0) / count)) for total in totals]
    assumed = str(given.get("assumed", "every request of the mean lengths"))
    return [means[0]] * count, [means[1]] * count, assumed


def _latencies(given: Mapping[str, Any], kept: Sequence[int]) -> list[tuple[str, float, float]]:
    """Percentiles of the requests' times if the file has them, else its own statistics."""
    ttfts, itls, outputs = (given.get(key) or () for key in ("ttfts", "itls", "output_lens"))
    pairs = [(itls[place], outputs[place]) for place in kept] if itls and outputs else []
    times_s = {
        "ttft": [ttfts[place] for place in kept] if ttfts else [],
        "tpot": [sum(gaps) / (tokens - 1) for gaps, tokens in pairs if gaps and tokens > 1],
    }
    found: list[tuple[str, float, float]] = [
        (name, share, float(np.percentile(values, share)))
        for name, values in times_s.items()
        if values
        for share in SHARES
    ]
    return found or [
        (name, share, value / 1e3)
        for name in times_s
        for statistic, share in _STATISTICS.items()
        if (value := _number(given, f"{statistic}_{name}_ms")) is not None
    ]
