"""Pools: every layer has its own pages and table; this is ``dsv4kv bench`` on the CPU."""

from dsv4kv.bench.run import run_case
from dsv4kv.bench.systems.workload import Model, Outcome
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.experiments import SystemsConfig


def bench_config(config: SystemsConfig) -> BenchConfig:
    """The cache and its workload as ``dsv4kv bench`` would be asked for them."""
    section = config.pools
    prompts = {"kind": "uniform", "low": section.prompt_tokens}
    synthetic = {
        "requests": 2 * section.requests,  # each slot has a second owner
        "input": prompts | {"high": section.prompt_tokens + section.requests},
        "output": {"kind": "fixed", "mean": section.decode_steps + 1},
    }
    drafts = {"draft_tokens": section.draft_tokens, "acceptance": 0.3}
    served = {"trace": None, "concurrency": section.requests, "step": "gather"}
    measured = {"verify_every": 1, "warmup_steps": 0, "memcpy_bytes": 2**20}
    context = 2 * section.prompt_tokens + 1024
    return BenchConfig.model_validate(
        {
            "device": "cpu",
            "model": {"preset": config.model, "layers": section.layers},
            "cache": {"sharing": "layer", "max_context_tokens": context},
            "workload": {**served, "synthetic": synthetic, "speculative": drafts},
            "measure": {"seed": config.seed, **measured},
        }
    )


def run_pools(config: SystemsConfig, _: Model) -> Outcome:
    """Move the layers' bytes, and time the manager's calls over a whole model."""
    case = run_case({}, bench_config(config), lambda _: None)
    outcome = Outcome("pools")
    for name, count in case.verification.by_operation.items():
        outcome.check(name, True, "", count)
    problems = case.verification.failures or ([case.error] if case.error else [])
    outcome.failures += [f"pools: {problem}" for problem in problems]
    assert case.cache is not None
    assert case.totals is not None
    parts = {
        "pages of the layers": ("main", "indexer"),
        "windows and states of the layers": ("window", "state"),
        "block tables": ("tables",),
    }
    for quantity, names in parts.items():
        size = sum(pool.allocated_bytes for pool in case.cache.pools if pool.name in names)
        outcome.counted(quantity, "B", size)
    outcome.counted("requests served", "requests", case.totals.requests)
    outcome.counted("max blocks held", "blocks", case.totals.peak_blocks)
    outcome.counted("drafted tokens rolled back", "tokens", case.totals.rolled_back_tokens)
    return outcome
