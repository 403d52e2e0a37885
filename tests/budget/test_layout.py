"""A layout is what was asked for, or the engines' default; contradictions get a sentence."""

from typing import Any

import pytest

from dsv4kv.budget.layout import Layout, LayoutWish, candidate_layouts
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model

FLASH = load_model("v4-flash")


def layouts(most_gpus: int = 64, **wish: Any) -> list[Layout]:
    return candidate_layouts(FLASH, LayoutWish(**wish), most_gpus)


@pytest.mark.parametrize(
    ("wish", "expected"), [
        ({"gpus": 1}, Layout()),
        ({"gpus": 8}, Layout(tp=8)),
        ({"gpus": 24}, Layout(tp=8, dp=3, ep=24)),
        ({"gpus": 8, "tp": 1}, Layout(dp=8, ep=8)),
        ({"gpus": 8, "dp": 2}, Layout(tp=4, dp=2, ep=8)),
        ({"gpus": 8, "pp": 2}, Layout(tp=4, pp=2)),
        ({"gpus": 16, "pp": 2, "ep": 8}, Layout(tp=8, pp=2, ep=8)),
    ]
)  # fmt: skip
def test_what_is_left_out_is_filled_in(wish: dict[str, int], expected: Layout) -> None:
    assert layouts(**wish) == [expected]


@pytest.mark.parametrize(
    ("wish", "expected"), [
        ({"gpus": 8}, [Layout(tp=8)]),
        ({"gpus": 16}, [Layout(dp=16, ep=16)]),
        ({"gpus": 8, "tp": 4, "pp": 2}, [Layout(tp=4, pp=2)]),
        ({"dp": 4}, [Layout(dp=4, ep=4)]),
        ({}, [*(Layout(tp=tp) for tp in (1, 2, 4, 8)), Layout(dp=16, ep=16)]),
        ({"gpus": 8, "tp": 2}, None),
        ({"gpus": 32, "tp": 2, "pp": 4}, None),
    ]
)  # fmt: skip
def test_a_server_of_attention_dp_over_all_ranks_or_none_has_no_other_layout(
    wish: dict[str, int], expected: list[Layout] | None
) -> None:
    asked = LayoutWish(**wish, all_or_none="trtllm-serve")
    if expected:
        assert candidate_layouts(FLASH, asked, 16) == expected
    else:
        with pytest.raises(ConfigError, match="is no layout of one trtllm-serve"):
            candidate_layouts(FLASH, asked, 16)


@pytest.mark.parametrize(
    ("wish", "sentence"), [
        ({"gpus": 8, "tp": 4, "dp": 4},
         "TP4 · DP4 is a layout of 16 GPUs and --gpus is 8: TP · DP · PP must equal the GPUs"),
        ({"gpus": 6, "tp": 4}, "TP4 is a layout of 4 GPUs or a multiple and --gpus is 6"),
        ({"gpus": 16, "tp": 4, "dp": 2}, "TP4 · DP2 is a layout of 8 GPUs and --gpus is 16"),
        ({"gpus": 2**64}, "a layout of over 1,048,576 GPUs"),
        ({"tp": 3}, "TP3 cannot split 64 attention heads of v4-flash"),
        ({"gpus": 8, "tp": 1, "ep": 3}, "EP3 does not divide the 8 GPUs of a stage"),
        ({"pp": 44}, "PP44 is more than the 43 layers of v4-flash"),
    ]
)  # fmt: skip
def test_a_contradictory_layout_is_a_sentence(wish: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        layouts(**wish)
    assert str(refusal.value).startswith(sentence)
