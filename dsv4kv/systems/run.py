"""Runs the systems that a configuration names, and writes what they gave for programs."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dsv4kv import __version__
from dsv4kv.choices import SYSTEMS
from dsv4kv.config.systems import SystemsConfig
from dsv4kv.measure.statistics import Estimate
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import build_schedule
from dsv4kv.systems.contents import Model
from dsv4kv.systems.outcome import Outcome, Row


def run_systems(
    config: SystemsConfig, on_system: Callable[[str, int, int], None]
) -> list[Outcome]:
    """Run them one after the other; ``on_system`` hears which is next, after how many of all.

    Raises:
        ConfigError: A system cannot be built as it is configured.
    """
    torch.set_num_threads(1)
    model = Model(build_schedule(load_model(config.model)))
    outcomes: list[Outcome] = []
    names = list(SYSTEMS) if config.run == "all" else [config.run]
    for name in names:
        on_system(name, len(outcomes), len(names))
        outcomes.append(SYSTEMS[name].load()(config, model))
    return outcomes


def problems(outcomes: Sequence[Outcome]) -> list[str]:
    """A sentence for each output that is not what it must be."""
    return [failure for outcome in outcomes for failure in outcome.checks.failures]


def dumps(config: SystemsConfig, outcomes: Sequence[Outcome]) -> str:
    """All of it as JSON: numbers in the unit of their row, intervals as half-widths."""
    document = {
        "dsv4kv": __version__,
        "config": config.model_dump(mode="json"),
        "systems": [
            {
                "name": outcome.system,
                "checks": outcome.checks.passed,
                "failures": outcome.checks.failures,
                "rows": [_row(row) for row in outcome.rows],
            }
            for outcome in outcomes
        ],
    }
    return json.dumps(document, indent=2)


def _row(row: Row) -> dict[str, Any]:
    return {
        "quantity": row.quantity,
        "unit": row.unit,
        "dsv4kv": _estimate(row.ours),
        "plain": _estimate(row.plain),
        "share": _estimate(row.share),
    }


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "half_width": estimate.half_width}
