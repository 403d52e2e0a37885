"""What ``dsv4kv trace mrc`` found, as CSV, JSON and a chart."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsv4kv.prefix.analysis.mrc import Answer
from dsv4kv.prefix.analysis.outcome import Outcome
from dsv4kv.prefix.analysis.sample import SampledHits
from dsv4kv.sizing.chart import Chart, Series, draw_svg

_GIB = 2**30


def written_bytes(outcome: Outcome, answer: Answer) -> int:
    """Bytes of window entries and states that a strategy writes."""
    window = outcome.checkpoint_tokens * answer.costs.window_token_bytes
    return window + (outcome.checkpoints or 0) * answer.costs.state_bytes


def _rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """A row for every capacity and everything measured at it."""
    for point in answer.points:
        at = {
            "capacity_tokens": point.capacity_tokens,
            "capacity_blocks": point.capacity_blocks,
            "capacity_bytes": point.capacity_bytes,
        }
        yield at | {
            "kind": "curve",
            "name": "lru",
            "block_hit_share": point.block_hits,
            "hit_share": point.token_hits,
            "hit_tokens": round(point.token_hits * answer.input_tokens),
            "rejected_requests": point.rejected,
        }
        for estimate in point.estimates:
            yield at | {
                "kind": "policy",
                "name": estimate.name,
                "hit_share": estimate.hit_share,
                "hit_tokens": round(estimate.hit_share * answer.input_tokens),
                "hit_share_low": estimate.low,
                "hit_share_high": estimate.high,
                "rejected_requests": point.rejected,
            }
        kinds = ("strategy", point.strategies), ("rule", point.rules), ("policy", point.policies)
        for kind, outcomes in kinds:
            for outcome in outcomes:
                drafts = {"speculation": outcome.speculation} if kind == "rule" else {}
                yield at | {"kind": kind} | _outcome_row(outcome, answer) | drafts


def _outcome_row(outcome: Outcome, answer: Answer) -> dict[str, Any]:
    lost = {f"lost_{name}_tokens": value for name, value in asdict(outcome.losses).items()}
    row: dict[str, Any] = {
        "name": outcome.name,
        "hit_share": outcome.hit_share,
        "hit_tokens": outcome.hit_tokens,
        "hit_requests": outcome.hit_requests,
        "found_tokens": outcome.found_tokens,
        "rejected_requests": outcome.rejected,
    }
    if outcome.found_blocks is not None:
        row["block_hit_share"] = outcome.found_blocks / answer.references
    if outcome.checkpoints is not None:
        row |= {
            "checkpoints": outcome.checkpoints,
            "written_per_new_token": outcome.written_per_new_token,
            "written_bytes": written_bytes(outcome, answer),
            "read_bytes": outcome.checkpoint_reads * answer.costs.checkpoint_bytes,
            "unreachable_checkpoints": outcome.unreachable_checkpoints,
        }
    return row | lost


def to_csv(answer: Answer) -> str:
    """The rows as CSV; what a row does not have is empty."""
    rows = list(_rows(answer))
    names = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_json(source: str, model: str, answer: Answer) -> str:
    """The rows and what they are about as one JSON document."""
    document = {
        "source": source,
        "model": model,
        "requests": answer.requests,
        "input_tokens": answer.input_tokens,
        "block_references": answer.references,
        "block_tokens": answer.block_tokens,
        "trace_block_tokens": answer.trace_block_tokens,
        "bytes_per_token": float(answer.costs.token_bytes),
        "checkpoint_bytes": answer.costs.checkpoint_bytes,
        "tokens_for_90_percent": answer.enough_tokens,
        "sampled_share": answer.sampling.share,
        "sampling_refused": answer.sampling.refused or None,
        "rows": list(_rows(answer)),
    }
    return json.dumps(document, indent=2)


def draw_answer(source: str, model: str, answer: Answer) -> str:
    """Hits over capacity as SVG: the curve, every strategy, every rule."""
    points = [point for point in answer.points if point.capacity_bytes is not None]
    lines: dict[str, list[tuple[float | str, float]]] = {}
    for point in points:
        assert point.capacity_bytes is not None
        place = point.capacity_bytes / _GIB
        lines.setdefault("all that is cached", []).append((place, point.token_hits))
        for outcome in (*point.strategies, *point.rules, *point.policies):
            lines.setdefault(outcome.label, []).append((place, outcome.hit_share))
        for estimate in point.estimates:
            for name, share in _band(estimate):
                lines.setdefault(name, []).append((place, share))
    return draw_svg(
        Chart(
            title=f"Prompt tokens that need not be computed: {Path(source).name}",
            note=f"dsv4kv trace mrc; {_certainty(answer)}; memory is binary: 1 GiB = 2^30 B",
            x_label=f"compressed cache of {model}, GiB",
            y_label="share of prompt tokens",
            series=tuple(Series(name, tuple(line)) for name, line in lines.items()),
            x_names={
                point.capacity_bytes / _GIB: f"{point.capacity_bytes / _GIB:.3g}"
                for point in points
                if point.capacity_bytes is not None
            },
        )
    )


def _certainty(answer: Answer) -> str:
    if not any(point.estimates for point in answer.points):
        return "exact"
    return f"exact, policies from a sample of {answer.sampling.share:.1%}"


def _band(estimate: SampledHits) -> Iterator[tuple[str, float]]:
    """An estimate, and the lines its interval lies between."""
    yield estimate.name, estimate.hit_share
    if estimate.high > estimate.low:
        yield f"{estimate.name}, 95 % from", estimate.low
        yield f"{estimate.name}, 95 % to", estimate.high
