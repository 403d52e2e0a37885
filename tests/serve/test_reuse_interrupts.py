"""An exception on any line of prefix reuse: nobody's block is lost, and it can be done again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.radix import RadixIndex
from dsv4kv.prefix.store import PrefixStore
from dsv4kv.serve.reuse import PrefixReuse
from dsv4kv.traces.request import Request
from tests.cache.caches import small_plan
from tests.interrupts import at_every_line


@dataclass
class Scene:
    """A cache of ten blocks of 256 tokens, two checkpoints, and the prompts in it."""

    manager: KVCacheManager
    checkpoints: CheckpointPool
    index: PrefixStore
    reuse: PrefixReuse


def prompt(*hashes: int) -> Request:
    """128 tokens for each hash, and 40 of its own."""
    return Request(0.0, 128 * len(hashes) + 40, 1, (*hashes, 1000 + hashes[-1]), 128)


def build() -> Scene:
    """One prompt has ended, another runs in slot 0 and has computed all, slot 1 is admitted."""
    plan = small_plan(
        layers=(2, 3), sharing="model", num_blocks=10, block_tokens=256, max_context_tokens=1024
    )
    manager = KVCacheManager(plan, data=False, allocator="refcount")
    index, checkpoints = RadixIndex.over(2, make_policy("lru", 20)), CheckpointPool(manager, 2)
    reuse = PrefixReuse(manager, index, checkpoints, None)
    scene = Scene(manager, checkpoints, index, reuse)
    run(scene, prompt(1, 2, 3))
    reuse.finish_prompt(0)
    reuse.end(0)
    manager.release_request(0, manager.generation(0))
    run(scene, prompt(1, 2, 3, 4, 5))
    manager.admit_request()
    return scene


def run(scene: Scene, request: Request) -> None:
    """Compute a prompt in slot 0 up to its last stop, which is saved."""
    slot = scene.manager.admit_request()
    position = scene.reuse.begin(slot, request)
    while (stop := scene.reuse.next_stop(slot)) <= request.input_tokens:
        prepare_forward(scene.manager, [slot], [position], [stop])
        scene.reuse.reach(slot, stop)
        position = stop
    prepare_forward(scene.manager, [slot], [position], [request.input_tokens])


def facts_of(scene: Scene) -> Any:
    """Every reference has its owner; what requests hold, and who keeps chains."""
    manager, reuse, (table,) = scene.manager, scene.reuse, scene.manager.tables
    allocator = reuse._allocator
    held = int(table.held.sum()) + scene.index.held
    assert int(allocator.refs(np.arange(allocator.num_blocks)).sum()) == held
    assert scene.checkpoints.count - scene.checkpoints.num_free == reuse.num_saved_checkpoints
    for number in reuse._saved.values():
        scene.checkpoints.check_saved(number)
    kept = set(scene.index._leases)
    assert kept == {each.lease for each in reuse._prompts.values() if each.lease.run is not None}
    prompts = {slot: (each.keys.tolist(), [*each.stops]) for slot, each in reuse._prompts.items()}
    counts = reuse.totals.lookups, reuse.totals.matched, reuse.totals.resumed
    return manager.tokens.tolist(), table.held.tolist(), prompts, len(kept), counts


def outcome_of(scene: Scene) -> Any:
    """What requests hold and what is cached."""
    return facts_of(scene), scene.index.held, list(scene.reuse._saved)


def ended() -> Scene:
    """No request runs; blocks and checkpoints are cached."""
    scene = build()
    scene.reuse.finish_prompt(0)
    scene.reuse.end(0)
    scene.manager.release_request(0, scene.manager.generation(0))
    return scene


def due() -> Scene:
    """A checkpoint is due in slot 1, and both are taken."""
    scene = build()
    scene.reuse.begin(1, prompt(7, 8))
    prepare_forward(scene.manager, [1], [0], [256])
    assert not scene.checkpoints.num_free
    return scene


@pytest.mark.parametrize("request_", [prompt(1, 2, 3, 9), prompt(1, 2, 3, 4, 5, 9), prompt(8)])
def test_a_request_resumes_whole_or_not_at_all(request_: Request) -> None:
    def begin(scene: Scene) -> None:
        scene.reuse.begin(1, request_)

    assert at_every_line(build, begin, facts_of, outcome=outcome_of) > 20


Operation = Callable[[Scene], object]
OPERATIONS: dict[str, tuple[Callable[[], Scene], Operation]] = {
    "a checkpoint is saved": (due, lambda scene: scene.reuse.reach(1, 256)),
    "a prompt is finished": (build, lambda scene: scene.reuse.finish_prompt(0)),
    "a request ends": (build, lambda scene: scene.reuse.end(0)),
    "room is made": (ended, lambda scene: scene.reuse._free(8)),
    "all is forgotten": (ended, lambda scene: scene.reuse.forget()),
}


@pytest.mark.parametrize(("make", "operate"), OPERATIONS.values(), ids=OPERATIONS)
def test_what_is_interrupted_loses_nothing_and_can_be_done_again(
    make: Callable[[], Scene], operate: Operation
) -> None:
    def facts(scene: Scene) -> Any:
        """A lease may have been given up: the block is its request's all the same."""
        tokens, held, prompts, _, counts = facts_of(scene)
        return tokens, held, prompts, counts

    assert at_every_line(make, operate, facts, outcome=outcome_of) > 10
