"""What a benchmark's result says of how far it can be believed, by its fields and what follows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_RANDOM = ("random", "random-ids")
_EVEN = 0.02
"""Prompts that differ less in length are random tokens: only their text is tokenized again."""


def facts_of(run: Mapping[str, Any], before: Sequence[Mapping[str, Any]] = ()) -> dict[str, str]:
    """Plain fields as text, and what follows from them.

    * ``failed_requests``: that were sent and did not succeed;
    * ``random_tokens``: ``yes`` where prompts are random tokens;
    * ``rounds``: requests for each that ran at once, where the rate is unlimited;
    * ``prompt_tokens_per_s``: of one prompt, by the median TTFT;
    * ``repeats``: ``yes`` where a run before it in the file sent the same prompts to the same
      server, and ``repeats_ttft``: this one's median TTFT as a share of that one's, where it has
      no lighter load, which makes the first token sooner by itself;
    * ``full_outputs``: share of answers that are as long as the longest, where every one is known.

    Args:
        run: The document.
        before: Documents before it in the same file.
    """
    plain = {key: str(value) for key, value in run.items() if isinstance(value, str | int | float)}
    return plain | dict(_derived(run, before))


def _derived(
    run: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    yield "failed_requests", str(_failed(run))
    if _is_random(run):
        yield "random_tokens", "yes"
    if (rounds := _rounds(run)) is not None:
        yield "rounds", f"{rounds:g}"
    completed, ttft = _number(run, "completed"), _number(run, "median_ttft_ms")
    prompts = _number(run, "total_input_tokens", "total_input")
    if completed and ttft and prompts:
        yield "prompt_tokens_per_s", f"{prompts / completed / ttft * 1e3:g}"
    same = next((each for each in reversed(before) if _same_prompts(each, run)), None)
    if same is not None:
        yield "repeats", "yes"
        earlier = _number(same, "median_ttft_ms")
        if ttft and earlier and _is_as_loaded(run, same):
            yield "repeats_ttft", f"{ttft / earlier:g}"
    outputs = run.get("output_lens")
    if isinstance(outputs, list) and set(map(type, outputs)) == {int} and max(outputs) > 1:
        yield "full_outputs", f"{outputs.count(max(outputs)) / len(outputs):g}"


def _failed(run: Mapping[str, Any]) -> int:
    """By the count of those, by what was asked and completed, or by errors."""
    counted = _number(run, "failed")
    asked, completed = _number(run, "num_prompts"), _number(run, "completed") or 0.0
    errors = run.get("errors")
    by_error = sum(map(bool, errors)) if isinstance(errors, list) else 0
    return int(max(counted or 0, (asked or completed) - completed, by_error))


def _is_random(run: Mapping[str, Any]) -> bool:
    named = run.get("dataset_name")
    if named is not None:
        return named in _RANDOM
    if run.get("random_input_len") is not None and not run.get("sharegpt_output_len"):
        return True
    inputs = run.get("input_lens")  # vLLM names no dataset, and no text is as long as another
    if not isinstance(inputs, list) or set(map(type, inputs)) != {int} or len(inputs) < 2:
        return False
    return bool(max(inputs) - min(inputs) <= _EVEN * max(inputs))


def _rounds(run: Mapping[str, Any]) -> float | None:
    """None where requests come by a rate, or nothing says how many run at once."""
    if _number(run, "request_rate") is not None:
        return None
    most, completed = _number(run, "max_concurrency"), _number(run, "completed")
    return completed / most if most and completed else None


def _same_prompts(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Random prompts of one seed are the same where their lengths are: a seed draws both."""
    keys = ("input_lens",) if one.get("input_lens") else ("total_input_tokens", "total_input")
    same = [one.get(key) == other.get(key) for key in keys if one.get(key) is not None]
    return bool(same) and all(same) and _is_random(one) and _is_random(other)


def _is_as_loaded(run: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a run has as many requests a second and at once as another, or more."""
    most = [
        [_number(each, key) or math.inf for key in ("request_rate", "max_concurrency")]
        for each in (run, other)
    ]
    return all(mine >= theirs for mine, theirs in zip(*most, strict=True))


def _number(run: Mapping[str, Any], *keys: str) -> float | None:
    """The first that is a finite number above 0."""
    for key in keys:
        value = run.get(key)
        if isinstance(value, int | float) and 0 < value < 2**62:
            return float(value)
    return None
