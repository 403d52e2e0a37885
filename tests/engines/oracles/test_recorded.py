"""Every engine's rule hits what the engine's own manager hit, request by request."""

import pytest

from dsv4kv.engines.names import RULES
from dsv4kv.engines.rule import SPECULATIONS
from dsv4kv.model.presets import load_model
from dsv4kv.replay.rules import Pool, run_rule
from dsv4kv.traces.paths import collect_paths
from dsv4kv.traces.request import Request
from tests.engines.oracles import recorded as kept
from tests.engines.oracles.asking import needs_engines
from tests.engines.oracles.recorded import PAGE, TRACES, Trace, read_traces

MODEL, V41 = load_model("v4-flash"), load_model("v4.1-flash")
ELSEWHERE = ("llama.cpp", "ds4", "vllm-ascend")
"""llama.cpp is asked in test_llama.py; the others' managers do not run on a CPU alone."""
ENGINES = [name for name, rule in RULES.items() if rule.engine and name not in ELSEWHERE]


def serve(trace: Trace, speculation: str = "none") -> list[int]:
    chunk, drafts = trace.chunk_pages * PAGE, SPECULATIONS[speculation]
    rule = RULES[trace.rule]
    size, model = rule.block_tokens, MODEL if "v4" in rule.kinds else V41
    pool = Pool(trace.table, trace.pages * size, size, model, chunk, drafts)
    outcome = run_rule(trace.rule, pool)
    assert not outcome.rejected
    hits: list[int] = outcome.resumed_tokens.tolist()
    return hits


def recorded(rule: str) -> list[Trace]:
    engine = next(engine for engine, rules in kept.RULES.items() if rule in rules)
    return [trace for trace in read_traces(engine) if trace.rule == rule]


@pytest.mark.parametrize(
    ("rule", "speculation"), [(rule, s) for rule in ENGINES for s in RULES[rule].drafts]
)
def test_a_rule_hits_what_its_engine_hit_on_a_hundred_random_traces(
    rule: str, speculation: str
) -> None:
    traces = recorded(rule)
    assert len(traces) == TRACES >= 100
    hits = [trace.hits[speculation] for trace in traces]
    assert [serve(trace, speculation) for trace in traces] == hits


def test_sglang_keeps_a_window_where_prompts_part() -> None:
    prompts = [(1, 2, 3, base, base + 1, base + 2) for base in (4, 14, 24, 34)]
    table = collect_paths([Request(float(n), 1536, 1, p, PAGE) for n, p in enumerate(prompts)])
    outcome = run_rule("sglang-v4:tail", Pool(table, 10**6, PAGE, MODEL))
    assert outcome.resumed_tokens.tolist() == [0, 0, 768, 768]


@needs_engines
@pytest.mark.parametrize(("engine", "rule"), [(e, r) for e, rs in kept.RULES.items() for r in rs])
def test_the_engines_managers_answer_as_recorded(engine: str, rule: str) -> None:
    assert kept.answered(engine, rule) == recorded(rule)
