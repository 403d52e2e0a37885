"""What the stand-in for HiCache's copies tells: whose content a copy reads, and when."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv4kv.diagnose.conform.drawn import draw_sglang
from dsv4kv.diagnose.conform.driven import hicache
from dsv4kv.diagnose.conform.driven.broken import Broken

PAGE, CHAIN, OTHER = 256, 11, 21
KV, C4, SWA = SimpleNamespace(), SimpleNamespace(), SimpleNamespace()
POOLS = {id(KV): ("kv", "context"), id(C4): ("c4", "context"), id(SWA): ("swa", "windows")}


def copies_of(**context: Any) -> Any:
    """Copies of pages of context, by ``p`` and number."""
    content = {int(name[1:]): held for name, held in context.items()}
    copies: Any = hicache.HostCopies  # nothing is typed that runs in the engine's environment
    return copies({"context": content, "windows": {}}, POOLS)


def transfers(chunk: int, page: int, *pools: Any) -> list[Any]:
    def slots(number: int) -> torch.Tensor:
        return torch.arange(number * PAGE, (number + 1) * PAGE)

    return [
        SimpleNamespace(host_pool=pool, host_indices=slots(chunk), device_indices=slots(page))
        for pool in pools or (KV, C4)
    ]


def load(copies: Any, chunk: int, page: int) -> Any:
    asked = transfers(chunk, page)
    return copies.submit_host_to_device(
        asked, transfer_layer_id_max=2, on_layer_done=lambda _: None
    )


def test_what_was_stored_is_loaded_from_a_store_that_ended() -> None:
    copies = copies_of(p5=CHAIN)
    stored = copies.submit_device_to_host(transfers(2, 5))
    assert not stored.finish_event.query()
    copies.land(0)
    assert stored.finish_event.query()
    loaded = load(copies, 2, 7)
    assert 7 not in copies._content["context"]
    copies.compute()
    assert copies._content["context"][7] == CHAIN
    assert not loaded.finish_event.query()
    copies.land(1)
    assert loaded.finish_event.query()


def test_who_waits_for_a_copy_waits_for_those_before_it_on_its_stream() -> None:
    copies = copies_of(p5=CHAIN, p6=OTHER)
    first = copies.submit_device_to_host(transfers(2, 5))
    second = copies.submit_device_to_host(transfers(3, 6))
    third = copies.submit_device_to_host(transfers(4, 5))
    second.finish_event.synchronize()
    assert first.finish_event.query()
    assert not third.finish_event.query()


def test_a_load_has_ended_when_the_result_of_its_step_was_taken() -> None:
    """One more step may be computed ahead of it."""
    copies = copies_of(p5=CHAIN)
    copies.submit_device_to_host(transfers(2, 5))
    copies.land_all()
    loaded = load(copies, 2, 7)
    copies.compute()
    copies.begin_step()
    assert not loaded.finish_event.query()
    copies.begin_step()
    assert loaded.finish_event.query()


def change(copies: Any) -> None:
    copies.submit_device_to_host(transfers(2, 5))
    copies._content["context"][5] = OTHER
    copies.land_all()


def mix(copies: Any) -> None:
    for chunk, page in ((2, 5), (3, 6)):
        copies.submit_device_to_host(transfers(chunk, page))
    copies.land_all()
    asked = [transfers(2, 7)[0], transfers(3, 7)[1]]
    copies.submit_host_to_device(asked, transfer_layer_id_max=0)


def store(page: int, *pools: Any) -> Any:
    return lambda copies: copies.submit_device_to_host(transfers(2, page, *pools))


def hurry(copies: Any) -> None:
    copies.submit_device_to_host(transfers(2, 5))
    load(copies, 2, 7)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (hurry, "page 2 of host pool kv is copied, and holds nothing whole"),
        (change, "page 5 of context changes under a copy of it"),
        (mix, "page 7 of context is copied of different prompts"),
        (store(8), "page 8 of context is copied, and holds nothing whole"),
        (store(9), "page 9 of context is copied, and holds nothing whole"),
        (store(5, KV), "copied by kv, and not once by c4, kv"),
        (store(5, KV, C4, C4), "copied by c4, c4, kv, and not once by c4, kv"),
    ],
)
def test_a_copy_of_what_is_not_there_or_not_whole_is_told(act: Any, says: str) -> None:
    with pytest.raises(Broken, match=says) as raised:
        act(copies_of(p5=CHAIN, p6=OTHER, p8=("3", 1)))
    assert raised.value.kind == "reads"


def test_prompts_that_are_served_alone_can_all_be_stored() -> None:
    """As dense as the rule says, at the first offer, in pools that hold all of them."""
    drawn = [draw_sglang(random.Random(seed), {"newest": True}, host=True) for seed in range(40)]
    served = [each for each in drawn if each.operations[0][0] == "serve"]
    assert 0 < len(served) < 40
    for sequence in served:
        settings = sequence.settings
        pages = {page for _, _, pages, _, _ in sequence.operations for page in pages}
        assert settings["blocks"] == settings["windows"] > len(pages)
        assert settings["host_ratio"] >= 1
        assert settings["rule"] == "sglang-v4:dense"
        assert settings["host_policy"] != "write_through_selective"
    assert any(operation[0] == "land" for each in drawn for operation in each.operations)
