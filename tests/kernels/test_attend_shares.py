"""Blocks of attention share the tiles of all tokens out evenly: counted by their own code."""

from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dsv4kv.model.config import build_schedule
from dsv4kv.model.plan import build_schema
from dsv4kv.model.presets import load_model
from dsv4kv.ops.check import check_scene
from dsv4kv.ops.launches import WARP, KernelModule, Launch
from dsv4kv.ops.launches.reads import GROUPS, NARROW, PAIRS, WIDE, Shape, plan_attend
from dsv4kv.ops.scenes import Scene, scenes_of
from dsv4kv.ops.storage import Entries, PageStore
from tests.examples import FULL
from tests.kernels.shim import twin
from tests.ops.operations import CPU, SCENES, SEED, bytes_after
from tests.ops.operations import cache as cache_of

SHARES = Path(__file__).with_name("shim") / "shares.cuh"
PLACES, TILE, WINDOW, CHOICES, ENTRIES = 132, 64, 128, 1024, 8192
LAYERS = {"csa": 2, "hca": 3}  # of V4-Pro


@cache
def planned(kind: str) -> Launch:
    """Attention of V4-Pro as its module is compiled."""
    model, meta = load_model("v4-pro"), torch.device("meta")
    schema = build_schema(model, build_schedule(model)[LAYERS[kind]], block_tokens=128)
    assert schema.window
    assert schema.main
    chosen = torch.empty(1, CHOICES, device=meta) if kind == "csa" else None
    table, number = torch.empty(1, ENTRIES, device=meta), torch.empty(1, device=meta)
    entries = Entries(PageStore.allocate(schema.main, 2, meta), table, number, chosen)
    queries = torch.empty(1, model.num_heads, 512, device=meta)
    asked = number, number, WINDOW, entries, queries, queries[0, :, 0], 1.0
    return plan_attend(PageStore.allocate(schema.window, 2, meta), *asked, queries, queries)[0]


def share(
    kind: str, slots: Tensor, seen: Tensor, lengths: Tensor, groups: int, cluster: int = 1
) -> list[int]:
    """Tiles of each block, after every tile of every token was taken once and no other."""
    tokens, most = len(slots), 2 + max(CHOICES, int(lengths.max())) // TILE + 1
    taken = torch.zeros(tokens, groups, most, dtype=torch.int32)
    of_block = torch.zeros(PLACES, dtype=torch.int32)
    macros = dict(planned(kind).module.macros) | {"DSV_CLUSTER": cluster}
    module = KernelModule.of(str(SHARES), macros)
    width = int(lengths.max()) + 1 if kind == "hca" else ENTRIES
    sizes = tokens, groups, most, WINDOW, width, CHOICES if kind == "csa" else 0
    arguments = slots, seen, lengths, taken, of_block, *sizes
    twin.run(Launch(module, "take_tiles", (PLACES // cluster, cluster), WARP, arguments))
    held = (slots >= 0) & (slots < 2**31)
    own = -(-seen.clamp(max=WINDOW) // TILE)
    others = -(-lengths // TILE) if kind == "hca" else (lengths > 0) * (CHOICES // TILE)
    tiles = (own * held).clamp(min=1) + others * held
    expected = torch.arange(most).expand(tokens, groups, most) < tiles[:, None, None]
    assert torch.equal(taken, expected.int())
    assert int(of_block.sum()) == groups * int(tiles.sum())
    return of_block.tolist()


def use(of_block: list[int]) -> tuple[float, float]:
    """Share of the GPU that works until the last block ends, and the most with whole tiles."""
    total, longest = sum(of_block), max(of_block)
    return total / (PLACES * longest), total / (PLACES * -(-total // PLACES))


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
def test_blocks_work_alike_for_every_batch(kind: str, cluster: int) -> None:
    found = []
    for batch in range(1, 257):
        slots = torch.arange(batch)
        seen, lengths = torch.full_like(slots, 8192), torch.full_like(slots, 2048)
        tiles = share(kind, slots, seen, lengths, groups=2, cluster=cluster)
        mine, best = use(tiles)
        assert mine == best, batch
        assert mine >= 0.95 or sum(tiles) <= 19 * PLACES, batch  # so few that one more shows
        found.append(mine)
    assert sum(found[:128]) / 128 >= 0.93  # of blocks that have whole tokens 0.76


@pytest.mark.parametrize("kind", LAYERS)
def test_unequal_lengths_and_slots_of_no_token_are_shared_out_alike(kind: str) -> None:
    random = torch.Generator().manual_seed(3)
    for batch in (*range(1, 40), 64, 100, 256):
        slots = torch.randperm(batch, generator=random)
        slots[torch.rand(batch, generator=random) < 0.2] = -1
        slots[torch.rand(batch, generator=random) < 0.1] = 2**63 - 1
        seen = torch.randint(0, 40_000, (batch,), generator=random)
        mine, best = use(share(kind, slots, seen, seen // 4, groups=1 + batch % 2))
        assert mine == best


SHAPES = {"wide": WIDE, "narrow": NARROW, "groups": GROUPS, "pairs": PAIRS}
ATTENDING = {name: scene for name, scene in SCENES.items() if scene.operation == "attend"}


def attend(shape: Shape, blocks: int, seed: int, **asked: object) -> None:
    for launch in plan_attend(**asked, shape=shape, blocks=blocks):  # type: ignore[arg-type]
        twin.run(launch, seed=seed)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", ATTENDING if FULL else list(ATTENDING)[:3])
def test_however_many_blocks_share_tokens_outputs_are_the_references(
    name: str, shape: Shape
) -> None:
    scene: Scene = ATTENDING[name]
    for blocks in (1, 2, 3, 5, 7, 40) if FULL else (1, 3, 40):
        assert check_scene(scene, partial(attend, shape, blocks, 777 + blocks), CPU, SEED) is None


@pytest.mark.parametrize("kind", LAYERS)
def test_a_pair_of_blocks_gives_the_bits_of_blocks_that_decode_alone(kind: str) -> None:
    scenes = scenes_of(cache_of(model_name="v4-pro"), SEED)  # of 128 heads
    attending = (each for each in scenes if each.operation == "attend")
    scene = next(each for each in attending if each.subject.startswith(kind))
    alone = bytes_after(scene, partial(attend, GROUPS, 1, 0))  # no token is cut
    for seed in (0, 1, 11, 12, 13) if FULL else (0, 11):
        pair = bytes_after(scene, partial(attend, PAIRS, 1, seed))
        assert all(map(torch.equal, pair, alone)), seed
    for blocks in (3, 20) if FULL else (3,):
        assert check_scene(scene, partial(attend, PAIRS, blocks, blocks), CPU, SEED) is None
