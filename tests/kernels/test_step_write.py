"""One launch for all that a step writes: the bits of the separate operations, in any order."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dsv4kv.errors import ConfigError
from dsv4kv.files import shipped
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.kernels.insert import plan_window_insert
from dsv4kv.ops.kernels.launch import KernelModule
from dsv4kv.ops.kernels.state import plan_step_write
from tests.kernels import state_twin
from tests.kernels.shim.twin import run
from tests.kernels.step_scenes import Runs, Step, make_step
from tests.ops.samples import read_entries, same_bits, within_one_step

ORDERS = (0, 1, 11, 12, 13)  # as numbered, backwards, and three at random
SINGLE: Runs = [
    (2, 131, 1),
    (0, 3, 1),
    (-1, 7, 1),
    (5, 0, 1),
    (1, 1023, 1),
    (3, 6, 1),
    (4, 127, 1),
]
DRAFTS: Runs = [(2, 130, 4), (-1, 8, 4), (0, 0, 4), (5, 126, 4), (1, 1021, 4), (3, 124, 4)]

SCENES: dict[str, Step] = {
    "csa with indexer": make_step(("csa", "indexer"), SINGLE),
    "csa with indexer, drafts": make_step(("csa", "indexer"), DRAFTS, drafts=3),
    "csa with indexer of v4-pro": make_step(("csa", "indexer"), SINGLE, model="v4-pro"),
    "hca": make_step(("hca",), SINGLE),
    "hca, drafts": make_step(("hca",), DRAFTS, drafts=3),
    "hca of v4-pro": make_step(("hca",), SINGLE, model="v4-pro"),
    "hca online": make_step(("hca",), SINGLE, online=True),
}
each_step = pytest.mark.parametrize("step", SCENES.values(), ids=SCENES)


def separate(step: Step) -> Step:
    """The step written by the kernels of the separate operations."""
    done = step.copy()
    run(plan_window_insert(done.ring, done.values, done.slots, done.positions))
    tokens = done.slots, done.positions
    for part in done.parts:
        state_twin.state_append(part.compressor, part.state, part.kv, part.score, *tokens)
        state_twin.flush(part.compressor, part.state, *tokens, part.store, part.entries)
    return done


def fused(step: Step, seed: int, module: KernelModule | None = None) -> Step:
    done = step.copy()
    launch = done.plan()
    run(replace(launch, module=module or launch.module), seed=seed)
    return done


def differences(found: Step, expected: Step) -> list[str]:
    right = expected.written()
    return [name for name, tensor in found.written().items() if not same_bits(tensor, right[name])]


@each_step
def test_fused_write_has_the_bits_of_the_separate_operations_in_any_order(step: Step) -> None:
    expected = separate(step)
    assert not any(same_bits(now, expected.written()[k]) for k, now in step.written().items())
    for seed in ORDERS:
        assert differences(fused(step, seed), expected) == [], seed


@pytest.mark.parametrize("name", ["csa with indexer", "hca online"])
def test_cpu_backend_and_reference_agree_within_a_step_of_the_format(name: str) -> None:
    steps = [SCENES[name].copy() for _ in range(2)]
    for step, backend in zip(steps, (reference, cpu), strict=True):
        backend.step_write(step.ring, step.values, step.slots, step.positions, step.parts)
    right, found = (step.parts for step in steps)
    assert same_bits(steps[0].ring.pages, steps[1].ring.pages)
    for one, other in zip(right, found, strict=True):
        torch.testing.assert_close(other.state, one.state)
        written = [entry for entry in one.entries.tolist() if entry >= 0]
        values = [read_entries(part.store, written) for part in (other, one)]
        rotated = one.compressor.hadamard
        assert within_one_step(one.store.layout.format, *values, rotated=rotated)


@pytest.mark.parametrize("name", ["csa with indexer", "hca", "hca online"])
def test_tokens_that_are_none_or_complete_no_group_write_no_entry(name: str) -> None:
    step = SCENES[name]
    ratio = step.parts[0].compressor.ratio
    inside = replace(step.copy(), positions=step.positions // ratio * ratio)  # entries stay
    for before, after in zip(inside.parts, fused(inside, seed=11).parts, strict=True):
        assert same_bits(before.store.pages, after.store.pages)


def test_blocks_that_meet_leave_their_arrivals_as_they_found_them() -> None:
    step = SCENES["hca"].copy()
    arrivals = torch.zeros(len(step.slots), dtype=torch.int32)
    for seed in ORDERS:
        run(step.plan(arrivals), seed=seed)
        assert not bool(arrivals.any())


MUTATIONS = {
    "reads the ring": (
        "Chunk chunk = {job.slot, write.positions[first], count};",
        "Chunk chunk = {job.slot, write.positions[first] + count, 0};",
    ),
    "finishes before all have pooled": ("before == kSplit - 1", "before == 0"),
    "keeps only the last token that arrived": ("int count = arrived(write, i);", "int count = 1;"),
}
"""What would be wrong in pooled_write.cuh, and a scene that shows it."""

FOUND_BY = {
    "reads the ring": "csa with indexer",
    "finishes before all have pooled": "hca",
    "keeps only the last token that arrived": "csa with indexer, drafts",
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_kernel_that_reads_what_is_being_written_is_found(mutation: str, tmp_path: Path) -> None:
    step = SCENES[FOUND_BY[mutation]]
    for source in shipped("kernels").glob("*.cuh"):
        (tmp_path / source.name).write_text(source.read_text())
    right, wrong = MUTATIONS[mutation]
    text = (tmp_path / "pooled_write.cuh").read_text()
    assert text.count(right) == 1
    (tmp_path / "pooled_write.cuh").write_text(text.replace(right, wrong))
    module = KernelModule(str(tmp_path / "step_write.cuh"), step.plan().module.macros)
    expected = separate(step)
    assert any(differences(fused(step, seed, module), expected) for seed in ORDERS[2:])


def test_a_ring_and_states_of_different_slots_are_refused() -> None:
    step = SCENES["hca"]
    fewer = replace(step, parts=(replace(step.parts[0], state=step.parts[0].state[:2]),))
    with pytest.raises(ConfigError, match="to a ring and to states of as many slots"):
        fewer.plan()


def test_shared_entries_without_room_to_meet_are_refused() -> None:
    step = SCENES["hca"]
    tokens = step.slots, step.positions
    with pytest.raises(ConfigError, match="give them scratch and arrivals"):
        plan_step_write(step.ring, step.values, *tokens, step.parts)
