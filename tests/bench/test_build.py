"""From a configuration to a cache: what is refused, and what the loop is told."""

import pytest
import torch

from dsv4kv.bench.build import (
    check_data_path,
    check_memory,
    loop_settings,
    plan_from,
)
from dsv4kv.bench.serve.loop import LoopSettings
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import ConfigError
from dsv4kv.measure.recorder import Recorder
from dsv4kv.model.plan import plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats
from tests.bench.serve.serving import drive_on_cpu
from tests.bench.settings import BOOKS, tiny_config


def test_every_setting_of_the_cache_reaches_the_plan() -> None:
    plan = plan_from(
        tiny_config(
            "model.preset=v4-pro",
            "model.layers=null",
            "model.pipeline.stage=1",
            "model.pipeline.stages=4",
            "model.formats.main=bf16",
            "model.formats.window=fp8",
            "model.formats.indexer=fp8",
            "cache.block_tokens=256",
            "cache.sharing=type",
            "cache.max_context_tokens=3000",
            "cache.num_blocks=40",
            "cache.num_slots=5",
            "cache.hadamard=false",
            "workload.speculative.draft_tokens=3",
        )
    )
    assert plan.config.name == "v4-pro"
    assert [schema.layer.layer_idx for schema in plan.schemas] == list(range(16, 31))
    csa = plan.schemas[0]
    assert csa.main
    assert csa.window
    assert csa.indexer
    assert (csa.main.format.name, csa.main.entries) == ("bf16", 64)
    assert (csa.window.format.name, csa.window.entries) == ("fp8", 131)
    assert csa.indexer.format.name == "fp8"
    assert plan.num_blocks == {"csa": 40, "hca": 40}
    assert (plan.num_slots, plan.max_context_tokens, plan.hadamard) == (5, 3000, False)


def test_draft_layers_and_online_state_reach_the_plan() -> None:
    plan = plan_from(
        tiny_config("model.layers=null", "model.draft_layers=true", "cache.state=online")
    )
    assert len(plan.schemas) == 44
    assert plan.schemas[3].state_shape == (3, 512)


def test_every_setting_of_the_workload_reaches_the_loop() -> None:
    config = tiny_config(
        "workload.concurrency=3",
        "workload.step_tokens=99",
        "workload.speculative.draft_tokens=2",
        "workload.speculative.acceptance=0.25",
        "workload.max_output_tokens=17",
        "measure.warmup_steps=4",
        "measure.verify_every=6",
        "measure.seed=8",
    )
    assert loop_settings(config) == LoopSettings(
        concurrency=3,
        step_tokens=99,
        draft_tokens=2,
        acceptance=0.25,
        max_output_tokens=17,
        warmup_steps=4,
        verify_every=6,
        seed=8,
    )


def test_entries_that_no_operation_moves_have_no_data() -> None:
    config = load_model("v4-flash")
    formats = choose_formats(config, main="nvfp4")
    plan = plan_cache(config, max_context_tokens=256, num_slots=1, formats=formats)
    with pytest.raises(ConfigError, match=r"^v4-flash with nvfp4 .* set workload.data to none"):
        check_data_path(plan)


@pytest.mark.parametrize("preset", ["v4-flash", "v4-pro", "v4.1-flash", "v3.2"])
def test_published_models_have_data(preset: str) -> None:
    check_data_path(plan_from(tiny_config(f"model.preset={preset}", "model.layers=null")))


def test_a_cache_larger_than_memory_is_refused_before_it_is_built() -> None:
    config = tiny_config("workload.concurrency=1000")
    plan = plan_from(config)
    needed = plan.total_bytes + 2 * config.measure.memcpy_bytes + 32 * plan.num_blocks["model"]
    needed += 4 * 64 * (plan.max_context_tokens // 4 + plan.max_context_tokens // 128)  # angles
    check_memory(config, plan, needed)
    with pytest.raises(ConfigError, match=r"^this run needs \d+ MiB .* workload.data to none\.$"):
        check_memory(config, plan, needed - 1)


def test_without_data_only_the_books_must_fit_into_memory() -> None:
    config = tiny_config("workload.concurrency=1000", BOOKS)
    plan = plan_from(config)
    books = 1000 * 4 * 8 + 32 * plan.num_blocks["model"]
    check_memory(config, plan, books)
    with pytest.raises(ConfigError, match=r"lower cache\.max_context_tokens"):
        check_memory(config, plan, books - 1)


def test_the_seed_decides_inputs_weights_and_samples() -> None:
    def draw(seed: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        config = tiny_config(f"measure.seed={seed}", "model.layers=[3]")
        manager = KVCacheManager(plan_from(config))
        drive = drive_on_cpu(config, manager, Recorder())
        main, verifier = drive.executor.layers[0].main, drive.verifier
        assert main
        assert main.compressor
        return verifier.inputs.window, main.compressor.ape, int(verifier.random.integers(2**60))

    first, again, other = draw(1), draw(1), draw(2)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert first[2] == again[2]
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[1], other[1])
    assert first[2] != other[2]


def test_the_indexer_rotates_its_keys_if_told_and_nothing_else_does() -> None:
    for hadamard in ("true", "false"):
        config = tiny_config(f"cache.hadamard={hadamard}")
        executor = drive_on_cpu(config, KVCacheManager(plan_from(config)), Recorder()).executor
        _, csa, hca = executor.layers
        parts = [csa.indexer, csa.main, hca.main]
        rotated = [part.compressor.hadamard for part in parts if part and part.compressor]
        assert rotated == [hadamard == "true", False, False]
