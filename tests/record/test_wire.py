"""Batches of either engine and any age are read alike; what is none says so."""

import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.record.events import Batch, Cleared, Removed, Stored, Unreadable, unpack
from tests.record.frames import CLEARED, removed, stored

TOKENS = list(range(32))


def batch(*events: Any, rest: tuple[Any, ...] = (0,)) -> Batch:
    return unpack(msgspec.msgpack.encode([1.5, list(events), *rest]))


ONE = stored([1], None, TOKENS[:16], 16)
SAME: dict[str, tuple[Batch, Batch]] = {
    "maps and arrays": (
        batch(stored([1, 2], 9, TOKENS, 16, medium="GPU"), removed(1, medium="GPU"), CLEARED),
        batch(["BlockStored", [1, 2], 9, TOKENS, 16, None, "GPU"], ["BlockRemoved", [1], "GPU"],
              ["AllBlocksCleared"]),
    ),
    "the oldest arrays, which end before the medium": (
        Batch(1.5, (Stored((1, 2), None, tuple(TOKENS), 16), Removed((1,)), Cleared())),
        batch(["BlockStored", [1, 2], None, TOKENS, 16, None], ["BlockRemoved", [1]],
              ["AllBlocksCleared"]),
    ),
    "fields and events of later versions": (
        batch(ONE | {"origin": "reuse", "ownership": {"tier": 2}}, {"type": "BlockMoved"},
              ["BlockPinned", 3], rest=(0, "more")),
        batch(ONE),
    ),
    "signed and unsigned names": (
        batch(stored([-1], None, TOKENS[:16], 16)),
        batch(stored([2**64 - 1], None, TOKENS[:16], 16)),
    ),
    "names that are whole digests": (
        batch(stored([b"a" * 32], b"b" * 32, TOKENS[:16], 16)),
        Batch(1.5, (Stored((b"a" * 32,), b"b" * 32, tuple(TOKENS[:16]), 16),)),
    ),
    "tokens in pairs, of which the first counts": (
        batch(stored([1, 2], None, [[token, token + 1] for token in TOKENS], 16)),
        batch(stored([1, 2], None, TOKENS, 16)),
    ),
    "no rank": (batch(CLEARED, rest=()), batch(CLEARED, rest=(None,))),
    "a rank": (batch(CLEARED, rest=(3,)), Batch(1.5, (Cleared(),), 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_batches_of_either_engine_and_any_age_are_the_same_events(name: str) -> None:
    one, other = SAME[name]
    assert one == other


@pytest.mark.parametrize(
    ("more", "is_chain"),
    [
        ({"kv_cache_spec_kind": "mla_attention"}, True),
        ({"kv_cache_spec_kind": "sliding_window_mla"}, False),
        ({"kv_cache_spec_kind": "mamba"}, False),
        ({"kv_cache_spec_kind": "chunked_local_attention"}, False),
        ({"kv_cache_spec_sliding_window": 128}, False),
    ],
)
def test_groups_of_windows_and_states_are_no_chains(more: dict[str, Any], is_chain: bool) -> None:
    (event,) = batch(stored([1, 2], None, TOKENS, 16, **more)).events
    assert isinstance(event, Stored)
    assert event.is_chain == is_chain


def test_an_offloaded_block_without_tokens_leaves_its_batch_readable() -> None:
    """As vLLM's offloading connector announces blocks unless it describes them (vllm#43468)."""
    offloaded = stored([1], None, [], 0, medium="CPU")
    gpu, cpu = batch(stored([1, 2], None, TOKENS, 16), offloaded).events
    assert isinstance(gpu, Stored)
    assert isinstance(cpu, Stored)
    assert gpu.is_chain
    assert (cpu.hashes, cpu.medium, cpu.is_chain) == ((1,), "CPU", False)


NESTED: list[Any] = []  # 900 deep: ``repr`` ended the recording
for _ in range(900):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlockStored"}, {"block_hashes": [1]}, stored([1.5], None, TOKENS, 16),
        stored([1], None, ["one"], 16), stored([1], None, [[]] * 16, 16),
        stored([1], None, [*TOKENS[1:], 2**63], 16), stored([1], None, [*TOKENS[1:], -1], 16),
        stored([1], None, [*TOKENS[1:], True], 16), stored([1], None, TOKENS, 0),
        stored([1], None, TOKENS, 32, group_idx=2**10), removed(1, group_idx=2**10),
        stored([1, 2], None, TOKENS, 16, extra_keys=[["a"]]),
        stored([1], None, TOKENS, 16, extra_keys=[NESTED]), [], 7,
    ],
)  # fmt: skip
def test_an_event_without_what_it_needs_makes_the_batch_unreadable(event: Any) -> None:
    with pytest.raises(Unreadable):
        batch(event)


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
TEXTS = st.text(max_size=2) | st.binary(max_size=2)
ODD = st.recursive(
    PLAIN | TEXTS,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=2), parts),
    max_leaves=4,
)


@given(st.sampled_from(sorted(stored([1], None, TOKENS, 16))), ODD, st.booleans(), ODD)
def test_any_value_is_read_or_unreadable(field: str, odd: Any, listed: bool, at_s: Any) -> None:
    event = stored([1], None, TOKENS, 16) | {field: [odd] if listed else odd}
    for payload in ([1.5, [event], 0], [at_s, [event], odd], odd):
        with suppress(Unreadable):
            unpack(msgspec.msgpack.encode(payload))


WHOLE = msgspec.msgpack.encode([1.5, [stored([1], None, [1, 2], 2)], 0])


@given(st.binary(max_size=64))
def test_any_bytes_are_a_batch_or_unreadable(payload: bytes) -> None:
    try:
        unpack(payload)
    except Unreadable:
        return


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 100_000,
        *(msgspec.msgpack.encode([at_s, [CLEARED], 0]) for at_s in (math.nan, math.inf, 1e300)),
        *(WHOLE[:end] for end in range(len(WHOLE))),
        msgspec.msgpack.encode([1.5, [CLEARED], 0, [[]] * 2_200_000]),
        msgspec.msgpack.encode([1.5, [["AllBlocksCleared"]] * 270_000]),
        msgspec.msgpack.encode([1.5, [["BlockRemoved", [1] * 1_100_000]] * 2]),
        msgspec.msgpack.encode([1.5, [stored([1, 2], None, TOKENS, 16, lora_name="x" * 9_000)]]),
    ],
)
def test_a_payload_that_is_cut_or_costly_is_unreadable(payload: bytes) -> None:
    with pytest.raises(Unreadable):
        unpack(payload)
