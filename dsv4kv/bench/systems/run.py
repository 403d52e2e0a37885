"""Runs the systems that a configuration names, and writes what they gave as JSON."""

import json
from collections.abc import Callable, Sequence

import torch

from dsv4kv import __version__
from dsv4kv.bench.systems.workload import Model, Outcome
from dsv4kv.choices import SYSTEMS
from dsv4kv.config.systems import SystemsConfig
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import build_schedule


def run_systems(
    config: SystemsConfig, on_system: Callable[[str, int, int], None]
) -> list[Outcome]:
    """Run them; ``on_system`` hears which is next, after how many of all."""
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
    systems = [
        {
            "name": outcome.system,
            "checks": outcome.checks.passed,
            "failures": outcome.checks.failures,
            "rows": [
                {
                    "quantity": row.quantity,
                    "unit": row.unit,
                    "dsv4kv": {"value": row.value.value, "half_width": row.value.half_width},
                }
                for row in outcome.rows
            ],
        }
        for outcome in outcomes
    ]
    document = {"dsv4kv": __version__, "config": config.model_dump(mode="json")}
    return json.dumps(document | {"systems": systems}, indent=2)
