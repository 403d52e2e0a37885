"""An answer as one JSON document: every number, its unit in its name."""

from dataclasses import asdict
from fractions import Fraction
from typing import Any

from dsv4kv.sizing.advice import Option
from dsv4kv.sizing.answer import Answer
from dsv4kv.sizing.compare import LayoutLine
from dsv4kv.sizing.engines.contract import Capacity, PoolCost
from dsv4kv.sizing.fit import RankUse
from dsv4kv.sizing.reuse import Reuse, reuse_document

SCHEMA = "dsv4kv.budget/1"
_UNITS = {
    "hbm": "hbm_bytes",
    "context": "context_tokens",
    "weights": "weights_bytes",
    "reserve": "reserve_bytes",
}


def to_document(
    found: Answer,
    options: list[Option],
    layouts: list[LayoutLine],
    curve: list[tuple[int, int]],
    reuse: Reuse | None,
) -> dict[str, Any]:
    """The whole answer as plain values; fractions of bytes become floats."""
    scenario = found.scenario
    inputs, layout, gpu = scenario.inputs, scenario.layout, scenario.gpu
    return {
        "schema": SCHEMA,
        "model": scenario.config.name,
        "engine": {
            "name": scenario.engine.name,
            "seen_in_logs": scenario.engine.seen_in_logs,
            "capacity": _capacity(found.capacity),
        },
        "gpu": {name: value for name, value in asdict(gpu).items() if name != "given_bytes"}
        | {"memory_bytes": gpu.memory_bytes, "memory_source": gpu.memory_source},
        "layout": asdict(layout)
        | {"gpus": layout.gpus, "label": layout.label, "kv_copies": found.kv_copies},
        "inputs": {
            _UNITS.get(name, name): _plain(value) for name, value in asdict(inputs).items()
        },
        "formats": {
            place: getattr(scenario.formats, place).name for place in ("main", "window", "indexer")
        },
        "weights": {
            "copy_bytes": scenario.weights.total_bytes,
            "parameters": scenario.weights.parameters,
            "source": scenario.weights.source,
        },
        "fits": found.fits,
        "context_tokens": found.context,
        "concurrency": found.concurrency,
        "max_concurrency": found.max_concurrency,
        "max_context_tokens": found.max_context,
        "max_tokens": found.max_tokens,
        "request": _request(found),
        "gpu_memory": use_document(found.use),
        "pools": [_pool(cost) for cost in found.costs],
        "concurrency_by_context": [
            {"context_tokens": tokens, "concurrency": count} for tokens, count in curve
        ],
        "layouts": [
            asdict(line.layout)
            | {
                "label": line.layout.label,
                "kv_copies": line.kv_copies,
                "weight_bytes": line.weight_bytes,
                "concurrency": line.concurrency,
            }
            for line in layouts
        ],
        "options": [asdict(option) for option in options],
        "prefix": reuse_document(reuse),
    }


def use_document(use: RankUse) -> dict[str, int]:
    """The memory of the tightest GPU, in bytes, and its stage."""
    parts = asdict(use)
    stage = parts.pop("stage")
    sizes = {f"{name}_bytes": size for name, size in parts.items()}
    return {"stage": stage} | sizes | {"cache_bytes": use.cache, "free_bytes": use.free}


def _request(found: Answer) -> dict[str, Any]:
    """One request: on the model as papers count it, and on the tightest GPU as it is stored."""
    return {
        "cached_bytes": found.cached_bytes,
        "token_bytes": float(found.token_bytes),
        "fixed_bytes_per_gpu": sum(cost.fixed_bytes for cost in found.costs),
        "in_flight_bytes_per_gpu": found.use.in_flight,
        "marginal_bytes_per_gpu": float(sum(cost.marginal_bytes for cost in found.costs)),
        "padding_bytes_per_gpu": float(sum(cost.padding_bytes for cost in found.costs)),
    }


def _pool(cost: PoolCost) -> dict[str, Any]:
    return {name: _plain(value) for name, value in asdict(cost).items()}


def _capacity(capacity: Capacity | None) -> dict[str, Any] | None:
    if capacity is None:
        return None
    return {name: _plain(value) for name, value in asdict(capacity).items()}


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Fraction) else value
