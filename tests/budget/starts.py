"""Recorded starts of public servers against what ``budget`` says of their commands.

``python -m tests.budget.starts`` prints the terms that the starts give.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv.budget.answer import Answer, answer
from dsv4kv.budget.inputs import Inputs, read_inputs
from dsv4kv.budget.launch import read_command
from dsv4kv.budget.scenario import find_model
from dsv4kv.budget.weights import find_weights
from dsv4kv.engines.vllm.sizes import VllmEngine
from dsv4kv.errors import Dsv4kvError

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "starts"
ABSENT = "the recorded starts are not on this machine"
GIB = 2**30
CONSUMED = "what all of the process holds, not its weights"
NO_WEIGHTS = {
    "gb300-tp4-v41": CONSUMED,
    "gb200-tp4-v41": CONSUMED,
    "gb200-tp2-v41": CONSUMED,
    "h200-tp8-v41": CONSUMED,
    "sg-h200-tp4-v41": f"{CONSUMED}, with the engram tables",
    "h100-tp8-v41-1m": "a round figure without drafts, of a start with them",
    "sg-h200-tp8-pro-fp8": "one byte an expert weight would be 190 GiB: its layout is not known",
    "rtxpro5000-pp5-v41-320e": "320 experts, which its name does not say",
    "b300-tp8-pro-dspark": "a round figure of a recipe's comment",
}
"""Starts whose weights are not compared, and why."""
NO_KV = {
    "mi300x-tp1-0731": "given",
    "rtxpro5000-pp5-v41-320e": "the stage that binds is not the one that printed",
    "h20-tp2-preview": "its utilisation is assumed",
    "h200-tp8-v41": "its flags are a recipe's of another day",
    "rtxpro-tp2-nvfp4-marlin": "its utilisation is assumed",
    "4090-48-tp4": "1.58 GiB, less than the interval",
}


ENGINES = dict.fromkeys(("b300-dp8-v41-092", "h100-tp8-v41-1m"), "vllm:0.30")
"""Images of September 2026, when 0.30 was the newest: they are answered as that."""


COUNTS_NO_GRAPHS = ("rtxpro-tp2-nvfp4-b12x", "rtxpro-tp2-0731-b12x")
"""Starts of a fork that does not take the estimate of graphs off."""


@dataclass(frozen=True)
class Start:
    """One start: its command, what was printed, and today's answer."""

    row: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.row["id"])

    @property
    def gpu(self) -> str:
        return str(self.row["gpu"])

    @property
    def fork(self) -> bool:
        return bool(self.row["fork"])

    @cached_property
    def found(self) -> Answer | None:
        """Today's answer; None where the command is refused."""
        texts = read_command(self.row["command"]).texts
        texts |= {
            "gpu": self.gpu,
            "gpus": str(self.row["gpus"]),
            "engine": ENGINES.get(self.name, self.row["product_engine"]),
        }
        if self.name.startswith(COUNTS_NO_GRAPHS):
            texts["graphs"] = "0"
        try:
            return answer(read_inputs(texts))
        except Dsv4kvError:
            return None

    def printed(self, name: str) -> float | None:
        """A printed number that can be compared: ``weights``, ``kv`` in GiB, or ``tokens``."""
        key = {"weights": "weights_gib_per_rank", "kv": "kv_gib"}.get(name, name)
        apart = NO_WEIGHTS if name == "weights" else NO_KV
        return None if self.name in apart else self.row["truth"].get(key)

    def answered(self, name: str) -> float | None:
        """The same number as ``budget`` says it."""
        if (found := self.found) is None:
            return None
        use = found.use
        if name == "weights":
            return use.weights / GIB
        if name == "kv":
            return (use.budget - use.weights - use.reserve - use.transient) / GIB
        return found.capacity.printed_tokens if found.capacity else None

    def error(self, name: str) -> float | None:
        """Answered over printed, less 1."""
        printed, answered = self.printed(name), self.answered(name)
        return None if printed is None or answered is None else answered / printed - 1


@cache
def starts() -> list[Start]:
    """All recorded starts; none where they are absent."""
    path = DATA / "recorded_starts.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [Start(json.loads(line)) for line in lines]


def errors(name: str, chosen: Sequence[Start]) -> list[float]:
    """Errors of those that have both numbers."""
    return [error for each in chosen if (error := each.error(name)) is not None]


PRIORS = {
    "step": (2.8, 0.7),
    "context": (0.3, 0.5),
    "ranks": (0.35, 0.3),
    "linked": (1.2, 1.0),
    "graphs": (0.3, 0.5),
    "graph_tokens": (2.0, 2.0),
    "scores": (7.0, 4.0),
    "older_scores": (28.0, 8.0),
}
"""GiB of a term, and how far it may be off: parts that some of these logs print."""
_HELD = 2.0
_NEAR = 20.0  # GiB of KV at which an error weighs as it is; a part of less weighs more


def fitted_starts() -> list[Start]:
    """vLLM's starts with KV memory that is not given and more than 4 GiB."""
    return [
        each
        for each in starts()
        if each.row["engine"].startswith("vllm")
        and (each.printed("kv") or 0) > 4
        and each.found is not None
    ]


def terms(start: Start) -> dict[str, float]:
    """How much there is of each term of a start."""
    assert start.found is not None
    scenario = start.found.scenario
    engine, machine = scenario.engine, replace(scenario.machine, dp=scenario.layout.dp)
    assert isinstance(engine, VllmEngine)
    return engine.kept_terms(scenario.start(0, start.found.context)._replace(machine=machine))


def kept(start: Start) -> float:
    """GiB that were neither weights nor KV nor logits, and no term that is computed.

    By the weights that were printed, where a fork or an unknown build has others than an answer.
    """
    assert start.found is not None
    use, said = start.found.use, start.row["truth"].get("weights_gib_per_rank")
    weights = use.weights / GIB
    if said and abs(weights / said - 1) > 0.02:
        weights = said
    left = use.budget - use.transient
    rest = left / GIB - weights - start.row["truth"]["kv_gib"]
    return float(rest - terms(start).get("workspace", 0))


def fit(chosen: Sequence[Start]) -> dict[str, float]:
    """Least squares on errors of KV memory, every term held loosely to its prior."""
    names = list(PRIORS)
    near = np.array([_NEAR / max(each.row["truth"]["kv_gib"], 8) for each in chosen])
    rows = np.array([[terms(each).get(name, 0.0) for name in names] for each in chosen])
    middle, spread = np.array(list(PRIORS.values())).T
    left = np.vstack([rows * near[:, None], _HELD * np.diag(1 / spread)])
    right = np.concatenate([np.array(list(map(kept, chosen))) * near, _HELD * middle / spread])
    return dict(zip(names, np.linalg.lstsq(left, right, rcond=None)[0].tolist(), strict=True))


def leave_out(chosen: Sequence[Start]) -> list[float]:
    """Errors of what is kept, in GiB, of each GPU type by a fit to all others."""
    found = []
    for each in chosen:
        others = fit([other for other in chosen if other.gpu != each.gpu])
        found.append(sum(others[name] * n for name, n in terms(each).items() if name in others)
                     - kept(each))  # fmt: skip
    return found


CHECKPOINTS = {  # name in weights.jsonl: preset, name of the checkpoint, draft layers
    "deepseek-ai/DeepSeek-V4-Flash (preview)": ("v4-flash", "", 1),
    "deepseek-ai/DeepSeek-V4-Flash-0731": ("v4-flash", "", 3),
    "deepseek-ai/DeepSeek-V4-Pro (preview)": ("v4-pro", "", 1),
    "deepseek-ai/DeepSeek-V4.1-Flash": ("v4.1-flash", "", 3),
    "nvidia/DeepSeek-V4-Flash-NVFP4": ("v4-flash", "nvidia/DeepSeek-V4-Flash-NVFP4", 1),
    "nvidia/DeepSeek-V4-Pro-NVFP4": ("v4-pro", "nvidia/DeepSeek-V4-Pro-NVFP4", 1),
    "canada-quant/DeepSeek-V4-Flash-W4A16-FP8-MTP": ("v4-flash", "DeepSeek-V4-W4A16-FP8-MTP", 1),
    "community REAP 132 of 256": ("v4-flash", "DeepSeek-V4-Flash-REAP-K132", 0),
}
"""Checkpoints of a known format. Of the others the name says nothing, or, of Flash-180B, 160
experts, which make 96.0 GiB: 100.4 are listed, and a start of it loaded 96.66."""


def weight_errors() -> dict[str, float]:
    """Derived size over listed size, less 1, of every checkpoint of a known format."""
    path, found = DATA / "weights.jsonl", {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        row = json.loads(line)
        if row["name"] in CHECKPOINTS:
            preset, name, drafts = CHECKPOINTS[row["name"]]
            weights = find_weights(Inputs(preset, checkpoint=name or None), find_model(preset))
            part = weights.drafts(drafts)
            whole = weights.total_bytes + weights.host_bytes + part.dense_bytes + part.expert_bytes
            # NVIDIA's 168 is in 10^9 B
            size = 168e9 / GIB if row["gib"] == 168.0 else row["gib"]
            found[row["name"]] = float(whole) / GIB / size - 1
    return found


if __name__ == "__main__":
    print(fit(fitted_starts()))
