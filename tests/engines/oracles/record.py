"""Ask the engines' own managers again: ``python -m tests.engines.oracles.record``."""

from dataclasses import replace
from typing import Any

from dsv4kv.engines.names import RULES as KNOWN
from tests.engines.oracles.asking import ask, keep
from tests.engines.oracles.recorded import FILES, PAGE, Trace, draw_traces

SPECULATIONS = {
    "vllm": ("none", "dspark", "mtp", "mtp+connector"),
    "sglang": ("none", "dspark", "mtp"),
}
RETENTION = {"vllm-v4:dense": None, "vllm-v4:4096": 4096, "vllm-v4:semantic": 0}
ONE_POOL = ("sglang", "sglang-v41:encoder")
REPLAYS = {"sglang-v41": "decoder", "sglang-v41:encoder": "encoder"}
GROUPS = {"vllm": "none", "vllm-v41": "v41"}
RULES = {
    "vllm": ("vllm", *RETENTION, "vllm-v41"),
    "sglang": ("sglang", "sglang-v4:dense", "sglang-v4:tail", "sglang-v41", "sglang-v41:encoder"),
}
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
MADE = {
    "vllm": "KVCacheManager of the wheel on a CPU, one request after the other, no output; with "
    "drafts the second window group is the draft layer's",
    "sglang": "UnifiedRadixCache (Python tree) of the wheel on a CPU, one request after the "
    "other, no output; a checkpoint after every chunk, one more at the end",
}


def question(trace: Trace, speculation: str) -> dict[str, Any]:
    """A trace as a manager reads it."""
    about: dict[str, Any] = {"prompts": trace.prompts}
    if trace.rule.startswith("vllm"):
        return about | {
            "blocks": trace.pages,
            "groups": GROUPS.get(trace.rule, "v4"),
            "retention": RETENTION.get(trace.rule),
            "chunk_tokens": trace.chunk_pages * PAGE,
            "speculation": speculation,
        }
    windows = None if trace.rule in ONE_POOL else trace.pages // 10
    return about | {
        "pages": trace.pages,
        "window_pages": windows,
        "chunk_pages": trace.chunk_pages if windows else 1 << 20,
        "free": not trace.rule.endswith("dense"),
        "speculation": speculation,
        "replay": REPLAYS.get(trace.rule),
    }


def answered(engine: str, rule: str) -> list[Trace]:
    """The traces of a rule with the manager's answers."""
    traces = list(draw_traces(rule))
    for speculation in [known for known in SPECULATIONS[engine] if known in KNOWN[rule].drafts]:
        asked = [question(trace, speculation) for trace in traces]
        answers = ask(f"{engine}_manager.py", engine, asked)
        traces = [
            replace(trace, hits=trace.hits | {speculation: hits})
            for trace, hits in zip(traces, answers, strict=True)
        ]
    return traces


def main() -> None:
    """Write both files."""
    for engine, rules in RULES.items():
        traces = [vars(trace) for rule in rules for trace in answered(engine, rule)]
        keep(FILES[engine], MADE[engine], traces)


if __name__ == "__main__":
    main()
