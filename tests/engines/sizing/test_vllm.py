"""vLLM's rules against its own integers.

Sources: vLLM 0.26.0 and 0.33.0, a start-up log of each, and the refusal of vllm#44376.
"""

from dataclasses import replace

import pytest

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import find_engine
from dsv4kv.engines.vllm import RELEASES, Release
from dsv4kv.engines.vllm.layout import closest_divisor
from dsv4kv.engines.vllm.sizes import VllmEngine
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats
from tests.engines.sizing.deployments import GIB, MILLION, deploy, variant


def vllm(version: str) -> VllmEngine:
    engine = find_engine(f"vllm:{version}")
    assert isinstance(engine, VllmEngine)
    return engine


def groups_of(version: str, deployment: Deployment) -> list[int]:
    return [group.page_bytes for group in vllm(version).layout(deployment).groups]


def test_groups_of_flash_have_their_published_bytes() -> None:
    expected = [1_002_240, 823_680, 786_240, 870_912, 656_640]
    assert groups_of("0.33", deploy()) == expected


def test_every_page_has_its_published_bytes() -> None:
    groups = vllm("0.33").layout(deploy()).groups
    sizes = [(group.block_tokens, sorted(group.sizes)) for group in groups]
    assert sizes == [
        (256, [1_728, 8_640, 37_440]),
        (64, [37_440]),
        (64, [37_440]),
        (4, [8_640, 32_832]),
        (8, [32_832]),
    ]


def test_an_indexer_page_in_mxfp4_has_its_published_bytes() -> None:
    full = vllm("0.33").layout(deploy(indexer="mxfp4")).groups[0]
    assert sorted(full.sizes) == [1_728, 4_608, 37_440]


@pytest.mark.parametrize(
    ("version", "model", "drafts", "expected"),
    [
        ("0.33", "v4-flash", 0, 1_002_240),
        ("0.33", "v4-pro", 1, 1_435_968),
        ("0.26", "v4-flash", 0, 1_039_680),
        ("0.26", "v4-flash", 1, 1_039_680),
        ("0.26", "v4-flash", 3, 1_077_120),
        ("0.26", "v4-pro", 1, 1_473_408),
        ("0.22", "v4-flash", 0, 22 * (37_440 + 8_640 + 1_728)),
    ],
)
def test_a_block_has_its_published_bytes(
    version: str, model: str, drafts: int, expected: int
) -> None:
    layout = vllm(version).layout(deploy(model, drafts=drafts))
    assert layout.unit_bytes == expected


@pytest.mark.parametrize(
    ("counts", "lowest", "expected"),
    [
        ([21, 44, 21, 20], 21, 22),  # Flash: 4 of padding against 20
        ([31, 62, 30, 31], 31, 31),  # Pro
        ([46, 21, 20], 21, 23),  # Flash with three drafts
        ([6, 6], 1, 6),  # of 1, 2, 3 and 6 without padding, the largest
    ],
)
def test_window_groups_are_cut_where_least_is_padded_and_of_several_the_largest(
    counts: list[int], lowest: int, expected: int
) -> None:
    assert closest_divisor(counts, lowest) == expected


def test_the_log_of_0_26_with_a_draft_layer_is_met_to_the_last_integer() -> None:
    engine, deployment = vllm("0.26"), deploy(context=912_128, flight=8192, drafts=1)
    capacity = engine.capacity(deployment, 7_236 * 1_039_680)
    assert (capacity.units, int(capacity.units_per_request)) == (7_236, 6_537)
    assert capacity.printed_tokens == 1_009_661
    assert capacity.log_lines == (
        "Available KV cache memory: 7.01 GiB",
        "GPU KV cache size: 1,009,661 tokens",
        "Maximum concurrency for 912,128 tokens per request: 1.11x",
    )


def test_the_log_of_0_33_with_three_drafts_is_met_to_the_last_integer() -> None:
    engine, deployment = vllm("0.33"), deploy(context=33_792, flight=16_896, drafts=3)
    capacity = engine.capacity(deployment, 13_270 * 1_002_240)
    assert (capacity.units, int(capacity.units_per_request)) == (13_270, 7_022)
    assert capacity.log_lines[-1] == (
        "GPU KV cache size: 63,859 tokens, "
        "Maximum concurrency for 33,792 tokens per request: 1.89x"
    )


def test_the_refusal_of_vllm_44376_is_met_to_the_last_integer() -> None:
    """vLLM 0.22, Flash, 16,384 tokens in flight: 6.66 GiB needed, 13,528 tokens would fit."""
    engine, deployment = vllm("0.22"), deploy(context=30_000, flight=16_384)
    memory = engine.needed_bytes(deployment, 13_528)
    capacity = engine.capacity(deployment, memory)
    assert round(memory / GIB, 2) == 5.44
    assert capacity.printed_tokens is None
    assert capacity.log_lines[-1].startswith(
        "ValueError: To serve at least one request with the model's max seq len (30000), "
        "(6.66 GiB KV cache is needed, which is larger than the available KV cache memory "
        "(5.44 GiB). Based on the available memory, the estimated maximum model length is 13528. "
    )


@pytest.mark.parametrize(("flight", "expected"), [(2048, 758), (8192, 2969), (16_384, 5917)])
def test_the_reserve_in_flight_has_its_published_blocks(flight: int, expected: int) -> None:
    """Counted as 0.26 does, weighted by each group's bytes."""
    counted = vllm("0.26").blocks_counted(deploy(flight=flight), MILLION)
    assert counted - MILLION // 256 == expected


@pytest.mark.parametrize(("flight", "expected"), [(2048, 858), (8192, 3354), (16_384, 6682)])
def test_0_33_counts_the_reserve_in_whole_blocks(flight: int, expected: int) -> None:
    counted = vllm("0.33").blocks_counted(deploy(flight=flight), MILLION)
    assert counted - MILLION // 256 == expected


def test_a_steady_decode_needs_26_blocks_beside_its_context() -> None:
    layout = vllm("0.33").layout(deploy())
    assert layout.blocks(MILLION, 1) - MILLION // 256 == 26


def test_up_to_0_26_a_request_can_take_more_blocks_than_are_counted() -> None:
    engine, deployment = vllm("0.26"), deploy(context=912_128, drafts=1)
    held = engine.request_bytes(deployment, 912_128, in_flight=8192)
    assert held == 6_917 * 1_039_680 > 6_537 * 1_039_680


def test_states_padded_to_one_size_make_two_groups_of_one() -> None:
    """Up to 0.26 an indexer state finds no page between 4,608 B and 37,440 B."""
    groups = vllm("0.26").layout(deploy(indexer="mxfp4")).groups
    assert [(group.block_tokens, group.page_bytes) for group in groups[3:]] == [
        (4, 786_240),
        (4, 786_240),
        (8, 748_800),
    ]


def test_a_length_that_cannot_start_names_no_length() -> None:
    line = vllm("0.33").capacity(deploy(), 3 * 1_002_240).log_lines[-1]
    assert "KV cache is needed" in line
    assert "estimated maximum" not in line


def test_no_memory_at_all_is_told_as_vllm_tells_it() -> None:
    lines = vllm("0.26").capacity(deploy(), -GIB).log_lines
    assert lines[-1].startswith("ValueError: No available memory for the cache blocks.")


def test_0_33_keeps_one_block_back_when_it_checks() -> None:
    engine, deployment = vllm("0.33"), deploy(context=4096, flight=2048)
    needed = int(engine.capacity(deployment, GIB).units_per_request) * 1_002_240
    assert engine.capacity(deployment, needed).printed_tokens is None
    assert engine.capacity(deployment, needed + 1_002_240).printed_tokens is not None


def test_a_pipeline_stage_pays_for_its_own_layers_in_the_whole_models_groups() -> None:
    half = deploy(layers=tuple(range(22)))
    whole, part = vllm("0.33").layout(deploy()), vllm("0.33").layout(half)
    assert part.blocks(MILLION, 8192) == whole.blocks(MILLION, 8192)
    assert part.unit_bytes == 10 * (37_440 + 8_640) + 10 * 1_728  # of layers 2..21


def test_stages_cover_every_page_once() -> None:
    stages = (tuple(range(15)), tuple(range(15, 31)), tuple(range(31, 43)))
    for release in RELEASES:
        whole = vllm(release.newest).layout(deploy()).groups
        parts = [vllm(release.newest).layout(deploy(layers=stage)).held for stage in stages]
        for index, group in enumerate(whole):
            assert sum(part[index].page_bytes for part in parts) == group.page_bytes


@pytest.mark.parametrize(
    ("version", "ratios", "deployment", "expected"),
    [
        (
            "0.26",
            (128, 128, 128, 4, 4, 0, 128, 4, 128, 4),
            deploy(
                context=131_072,
                flight=1,
                main="bf16",
                indexer="mxfp4",
                block_tokens=512,
                layers=(2,),
            ),
            (135_168, 1_786, 5_775_360),
        ),
        (
            "0.25",
            (0, 0, 128, 0, 4, 4, 0, 4),
            deploy(context=912_128, flight=8192, layers=(0, 1, 2, 3)),
            (76_608, 201_552, 36_536_832),
        ),
    ],
)
def test_a_stage_without_layers_of_a_group_weighs_it_as_the_whole_model_does(
    version: str, ratios: tuple[int, ...], deployment: Deployment, expected: tuple[int, ...]
) -> None:
    """Bytes of a block, blocks of a request, bytes the start asks for; as vLLM's planner gives."""
    engine, stage = vllm(version), replace(deployment, model=variant(ratios))
    context = stage.max_context_tokens
    unit = engine.layout(stage).unit_bytes
    needed = engine.needed_bytes(stage, context)
    assert (unit, engine.blocks_counted(stage, context), needed) == expected


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.newest)
def test_any_layers_of_a_v4_model_are_served(release: Release) -> None:
    for ratios in ((4,), (4, 4, 4, 0), (0, 4, 128, 128), (128, 4) * 9):
        deployment = replace(deploy(), model=variant(ratios))
        assert VllmEngine(release).capacity(deployment, 64 * GIB).printed_tokens


def test_a_model_without_csa_layers_is_served_where_pages_need_no_common_place() -> None:
    """States fill what a window block must hold anyway: one page in every group."""
    deployment = replace(deploy(), model=variant((128, 128)))
    layout = vllm("0.33").layout(deployment)
    assert [group.page_bytes for group in layout.groups] == [3_456, *[37_440] * 2, *[32_832] * 2]
    with pytest.raises(ConfigError, match="it needs a CSA layer"):
        vllm("0.26").layout(deployment)


def formatted(model: str, main: str = "fp8_ds_mla", window: str = "fp8_ds_mla") -> Deployment:
    """A deployment in given formats; 584 B unless told otherwise."""
    return replace(deploy(), model=load_model(model), formats=choose_formats(
        load_model(model), main, window, "fp8"))  # fmt: skip


@pytest.mark.parametrize(
    ("deployment", "sentence"),
    [
        (replace(deploy(), model=variant((0, 4, 2))), "which variant is not"),
        (replace(deploy(), model=variant((0, 2, 1))), "which variant is not"),
        (formatted("v4.1-flash", "fp4", "fp8_group32"), "not in fp4 with windows in fp8_group32"),
        (replace(formatted("v4.1-flash"), block_tokens=96), "a multiple of 64 for V4.1"),
        (replace(formatted("v3.2"), block_tokens=96), "a multiple of 64 for V3.2"),
        (
            replace(formatted("v4.1-flash"), layers=tuple(range(10, 20))),
            "layer 10 reads the KV of layer 8, .* begin at layer 2, 8, 14, 20",
        ),
        (deploy(state_bytes=2), "choose the state fp32"),
        (deploy(online_state=True), "choose the state fp32"),
        (deploy(indexer="bf16"), "in fp8 or mxfp4, not bf16"),
        (deploy(block_tokens=100), "a multiple of 128"),
        (deploy(block_tokens=0), "a multiple of 128"),
        (replace(deploy(), model=variant((0, 0))), "at least one CSA or HCA layer"),
        (
            replace(deploy(), formats=choose_formats(deploy().model, "bf16", "fp8_ds_mla")),
            "in one format, not fp8_ds_mla and bf16",
        ),
    ],
)
def test_what_vllm_does_not_serve_is_told_in_a_sentence(
    deployment: Deployment, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        vllm("0.33").costs(deployment)


@pytest.mark.parametrize("model", ["v4.1-flash", "v3.2"])
@pytest.mark.parametrize("version", ["0.22", "0.26", "0.28"])
def test_versions_before_v41_serve_v4_alone(version: str, model: str) -> None:
    with pytest.raises(ConfigError, match=f"which {model} is not"):
        vllm(version).costs(formatted(model))


def test_a_pipeline_stage_of_v41_holds_its_own_layers_and_the_ring_of_its_owners() -> None:
    """Layers 0 to 19 own three caches of ratio 2, layers 20 to 39 one of ratio 1."""
    whole = formatted("v4.1-flash")
    first, second = (
        vllm("0.33").layout(replace(whole, layers=tuple(range(at, at + 20)))) for at in (0, 20)
    )
    assert [len(stage.held[0].rows) for stage in (first, second)] == [3, 1]
    assert [len(stage.held[-1].rows) for stage in (first, second)] == [3, 0]
    assert len(first.groups) == len(second.groups) == 9


def test_more_drafts_than_six_widen_the_ring_of_v41() -> None:
    ring = [
        vllm("0.33").layout(replace(formatted("v4.1-flash"), draft_tokens=drafts)).groups[-1]
        for drafts in (0, 6, 7)
    ]
    assert [group.block_tokens for group in ring] == [8, 8, 16]
    assert [group.pages[0].page_bytes for group in ring] == [32_768, 32_768, 65_536]


def test_blocks_too_small_for_a_window_page_are_refused_where_they_share_its_place() -> None:
    small = deploy(block_tokens=128)
    with pytest.raises(ConfigError, match="blocks of 256 tokens or more"):
        vllm("0.26").layout(small)
    assert vllm("0.33").layout(small).unit_bytes == 870_912  # the states are the widest group


def test_entries_in_bf16_have_plain_pages() -> None:
    full = vllm("0.33").layout(deploy(main="bf16")).groups[0]
    assert sorted(full.sizes) == [2_048, 8_704, 65_536]
