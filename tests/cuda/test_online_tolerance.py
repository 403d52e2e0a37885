"""The tolerance of online states takes an exponential one step away, and none of eight."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dsv4kv.ops import cuda
from tests.cuda.comparison import assert_equals_twin
from tests.cuda.online_tolerance import assert_within, is_online, online_tolerance
from tests.cuda.scenes import SCENES, Arguments
from tests.gpu_twin import twin_gpu
from tests.ops.samples import generator

(SCENE,) = (scene for scene in SCENES if str(scene) == "state_append main/fp8_ds_mla hca online")
Floats = NDArray[np.float32]


def random_arguments(seed: int) -> Arguments:
    """The scene with other tokens and states; denominators from one to a group's tokens."""
    compressor, state, kv, score, slots, positions = SCENE.arguments()
    state, kv, score = (
        torch.randn(each.shape, generator=generator(seed + n))
        for n, each in enumerate((state, kv, score))
    )
    state[:, 1] = 1 + state[:, 1].abs() * compressor.ratio / 3
    return compressor, state, kv, score, slots, positions


def append(arguments: Arguments, steps: NDArray[np.int64]) -> torch.Tensor:
    """The kernel's fold, its exponentials moved by ``steps`` floats, int[C]."""
    compressor, state, kv, score, slots, positions = arguments
    after: torch.Tensor = state.clone()
    biased = score + compressor.ape[positions % compressor.ratio]
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        if int(positions[token]) % compressor.ratio == 0:
            after[slot] = torch.stack([biased[token], torch.ones_like(kv[token]), kv[token]])
            continue
        top, denominator, weighted = state[slot].numpy()
        newer, value = biased[token].numpy(), kv[token].numpy()
        highest = np.maximum(top, newer)
        left, right = moved_exp(top - highest, steps), moved_exp(newer - highest, steps)
        after[slot, 0] = torch.from_numpy(highest)
        after[slot, 1] = torch.from_numpy(fma(denominator, left, right))
        after[slot, 2] = torch.from_numpy(fma(weighted, left, value * right))
    return after


def moved_exp(x: Floats, steps: NDArray[np.int64]) -> Floats:
    """exp(x), so many floats away; exp(0) is 1 for everybody."""
    exact = np.exp(x.astype(np.float64)).astype(np.float32)
    moved = (exact.view(np.int32) + steps.astype(np.int32)).view(np.float32)
    return np.where(x == 0, exact, moved)


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    return (a.astype(np.float64) * b + c).astype(np.float32)


def steps_of(seed: int, size: int, channels: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).choice([-size, size], channels)


@pytest.mark.parametrize("seed", range(20))
def test_exponentials_one_step_away_are_within_the_tolerance(seed: int) -> None:
    arguments = random_arguments(100 * seed)
    channels = arguments[1].shape[-1]
    expected = append(arguments, np.zeros(channels, np.int64))
    found = append(arguments, steps_of(seed, 1, channels))
    assert not torch.equal(found, expected)
    assert_within(found, expected, online_tolerance(arguments, expected))


@pytest.mark.parametrize("seed", range(20))
def test_exponentials_eight_steps_away_are_not(seed: int) -> None:
    arguments = random_arguments(100 * seed)
    channels = arguments[1].shape[-1]
    expected = append(arguments, np.zeros(channels, np.int64))
    found = append(arguments, steps_of(seed, 8, channels))
    with pytest.raises(AssertionError, match=r"^\d\d+ differ"):
        assert_within(found, expected, online_tolerance(arguments, expected))


def test_the_fold_here_is_the_kernels() -> None:
    arguments = SCENE.arguments()
    found = append(arguments, np.zeros(arguments[1].shape[-1], np.int64))
    with twin_gpu():
        cuda.state_append(*arguments)
    tolerance = online_tolerance(SCENE.arguments(), arguments[1])
    assert_within(found, arguments[1], tolerance)
    assert float((found != arguments[1]).float().mean()) < 0.02  # glibc's expf is nearly exact


@pytest.mark.parametrize("place", [(0, 0, 0), (1, 0, 7), (2, 1, 3)])
def test_maxima_first_tokens_and_slots_without_a_token_have_the_same_bits(
    place: tuple[int, int, int],
) -> None:
    found, expected = SCENE.arguments(), SCENE.arguments()
    for arguments in (found, expected):
        arguments[1].copy_(append(arguments, np.zeros(arguments[1].shape[-1], np.int64)))
    assert_equals_twin(SCENE, found, expected)
    found[1][place] = torch.nextafter(found[1][place], torch.tensor(torch.inf))
    with pytest.raises(AssertionError):
        assert_equals_twin(SCENE, found, expected)


def test_only_online_states_are_taken_for_such() -> None:
    for scene in SCENES:
        online = [each for each in scene.arguments() if is_online(each)]
        alone = "online" in scene.subject and scene.operation != "step_write"  # its are in parts
        assert len(online) == alone
