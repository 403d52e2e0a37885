"""The stand-ins for copies to and from host memory: whose content a copy reads, and when."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsv4kv.diagnose.conform.driven import broken, hicache, offloading

COPIES: Any = offloading.Copies  # nothing is typed that runs in the engine's environment
HOST_COPIES: Any = hicache.HostCopies
PAGE = 256
CHAIN, OTHER = [11, 12, 13, 14], [21, 22, 23, 24]
HELD = (1, 0, CHAIN, 16)  # a block of 16 tokens of group 1, with a name for every four
WANTED = (1, 0, 16, CHAIN[3], 4)
KV, C4, SWA = SimpleNamespace(), SimpleNamespace(), SimpleNamespace()
POOLS = {id(KV): ("kv", "context"), id(C4): ("c4", "context"), id(SWA): ("swa", "windows")}


@pytest.fixture(autouse=True)
def _nothing_noted() -> None:
    broken.NOTED.clear()


def vllm(**content: Any) -> Any:
    """Copies of vLLM's blocks, by ``b`` and number; jobs 0 and 1 store and load one block."""
    copies = COPIES(lambda job_id, success: job_id, {int(n[1:]): x for n, x in content.items()})
    copies.wanted |= {0: {2: WANTED}, 1: {7: WANTED}}
    return copies


def spec(*numbers: int) -> SimpleNamespace:
    return SimpleNamespace(block_ids=np.array(numbers))


def sglang(**context: Any) -> Any:
    """Copies of SGLang's pages of context, by ``p`` and number."""
    content = {int(name[1:]): held for name, held in context.items()}
    return HOST_COPIES({"context": content, "windows": {}}, POOLS)


def transfers(chunk: int, page: int, *pools: Any) -> list[Any]:
    host, device = (torch.arange(n * PAGE, (n + 1) * PAGE) for n in (chunk, page))
    return [
        SimpleNamespace(host_pool=pool, host_indices=host, device_indices=device)
        for pool in pools or (KV, C4)
    ]


def load(copies: Any, chunk: int, page: int) -> Any:
    return copies.submit_host_to_device(transfers(chunk, page), transfer_layer_id_max=0)


def test_vllm_loads_what_a_store_that_ended_left() -> None:
    copies = vllm(b5=HELD)
    copies.submit_store(0, spec(5), spec(2))
    assert copies.get_finished() == []
    copies.land(0)
    copies.submit_load(1, spec(2), spec(7))
    assert 7 not in copies._content
    copies.wait({1, 99})
    assert copies._content[7] == HELD
    assert copies.get_finished() == [0, 1]
    assert not broken.NOTED


def test_sglang_loads_what_a_store_that_ended_left() -> None:
    """A load ends with the step after the one that was computed with it."""
    copies = sglang(p5=1, p6=2)
    stores = [copies.submit_device_to_host(transfers(2 + n, 5 + n % 2)) for n in range(3)]
    stores[1].finish_event.synchronize()
    assert [each.finish_event.query() for each in stores] == [True, True, False]
    loaded = load(copies, 2, 7)
    assert 7 not in copies._content["context"]
    copies.compute()
    assert copies._content["context"][7] == 1
    copies.begin_step()
    assert not loaded.finish_event.query()
    copies.begin_step()
    assert loaded.finish_event.query()
    assert not broken.NOTED


def change(copies: Any) -> None:
    copies.submit_store(0, spec(5), spec(2))
    copies._content[5] = (1, 0, OTHER, 16)
    copies.land(0)


def give_away(copies: Any) -> None:
    copies.submit_store(0, spec(5), spec(2))
    copies.land(0)
    copies.submit_load(1, spec(2), spec(7))
    copies.submit_store(2, spec(8), spec(2))


def store(held: Any) -> Callable[[Any], Any]:
    def act(copies: Any) -> None:
        copies._content[5] = held
        copies.submit_store(0, spec(5), spec(2))

    return act


def change_page(copies: Any) -> None:
    copies.submit_device_to_host(transfers(2, 5))
    copies._content["context"][5] = 2
    copies.land_all()


def mix(copies: Any) -> None:
    for chunk, page in ((2, 5), (3, 6)):
        copies.submit_device_to_host(transfers(chunk, page))
    copies.land_all()
    asked = [transfers(2, 7)[0], transfers(3, 7)[1]]
    copies.submit_host_to_device(asked, transfer_layer_id_max=0)


def store_page(page: int, *pools: Any) -> Callable[[Any], Any]:
    return lambda copies: copies.submit_device_to_host(transfers(2, page, *pools))


@pytest.mark.parametrize(
    ("open_copies", "act", "says"),
    [
        (vllm, lambda copies: copies.submit_load(1, spec(2), spec(7)), "chunk 2 of host memory"),
        (vllm, change, "block 5 changes under a copy of it"),
        (vllm, give_away, "chunk 2 of host memory has another copy under way"),
        (vllm, store((1, 0, CHAIN, 12)), "tokens to 16 of group 1, and holds nothing of them"),
        (vllm, store((2, 0, CHAIN, 16)), "tokens to 16 of group 1, and holds nothing of them"),
        (vllm, store((1, 0, OTHER, 16)), "to 16 of group 1, and holds another prompt's"),
        (sglang, lambda copies: load(copies, 2, 7), "page 2 of host pool kv is copied, and holds"),
        (sglang, change_page, "page 5 of context changes under a copy of it"),
        (sglang, mix, "page 7 of context is copied of different prompts"),
        (sglang, store_page(8), "page 8 of context is copied, and holds nothing whole"),
        (sglang, store_page(5, KV), "copied by kv, and not once by c4, kv"),
        (sglang, store_page(5, KV, C4, C4), "copied by c4, c4, kv, and not once by c4, kv"),
    ],
)
def test_a_copy_of_what_is_not_there_or_not_its_own_is_noted(
    open_copies: Any, act: Any, says: str
) -> None:
    numbers = {"b5": HELD, "b8": HELD} if open_copies is vllm else {"p5": 1, "p6": 2, "p8": ("3",)}
    act(open_copies(**numbers))
    assert says in broken.NOTED["reads"]


def test_a_block_is_not_given_back_while_a_load_writes_it() -> None:
    host: Any = object.__new__(offloading.Host)
    policy = SimpleNamespace(chunks={})
    host._manager = SimpleNamespace(
        _policy=policy, _num_chunks=0, _num_allocated_chunks=0, _free_list=[],
        _get_num_free_chunks=lambda: 0, _num_evictable_cache_chunks=0,
    )  # fmt: skip
    host._side, host.copies = SimpleNamespace(_jobs={}), vllm()
    host.copies.under_way[9] = False, [(2, 7, HELD)]
    host.check([1, 2])
    assert not broken.NOTED
    host.check([1, 7])
    assert broken.NOTED["blocks"] == "block 7 is free, and a load writes it"
