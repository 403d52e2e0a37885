import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import Point, expand_axes, load_config
from dsv4kv.errors import ConfigError

from .conftest import Load


@pytest.fixture
def expand(load: Load) -> Callable[..., list[Point[BenchConfig]]]:
    """Expand axes over a configuration text."""

    def cases(
        *axes: str, content: str = "{}", overrides: tuple[str, ...] = ()
    ) -> list[Point[BenchConfig]]:
        return expand_axes(load(content, *overrides), overrides, axes)

    return cases


Expand = Callable[..., list[Point[BenchConfig]]]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from(["model", "type", "layer"]), min_size=1, max_size=3, unique=True),
)
def test_axes_expand_to_their_product_with_the_last_changing_fastest(
    blocks: list[int], sharing: list[str]
) -> None:
    axes = [f"cache.num_blocks={','.join(map(str, blocks))}", f"cache.sharing={','.join(sharing)}"]
    cases = expand_axes(load_config("default"), [], axes)
    points = [(case.config.cache.num_blocks, case.config.cache.sharing) for case in cases]
    assert points == list(itertools.product(blocks, sharing))
    assert [tuple(case.axis.values()) for case in cases] == points
    assert all(list(case.axis) == ["cache.num_blocks", "cache.sharing"] for case in cases)


def test_commas_inside_brackets_and_quotes_do_not_split(expand: Expand) -> None:
    cases = expand("model.layers=[0,2], [0,2,3],null", 'name="a,b",c')
    assert [case.axis["model.layers"] for case in cases[::2]] == [[0, 2], [0, 2, 3], None]
    assert [case.config.name for case in cases[:2]] == ["a,b", "c"]


@pytest.mark.parametrize(
    "axes",
    [
        ("cache.sharing=" + ",".join(["type"] * 200_000),),
        ("measure.seed=" + ",".join(map(str, range(70))), "name=" + ",".join(map(str, range(70)))),
    ],
    ids=["one axis", "their product"],
)
def test_too_many_points_are_refused_before_they_are_made(
    axes: tuple[str, ...], expand: Expand
) -> None:
    with pytest.raises(ConfigError, match="--axis: more than 4,096 points: leave values out"):
        expand(*axes)


def test_the_file_and_the_overrides_stand_beneath_the_axes(expand: Expand) -> None:
    (case,) = expand("cache.sharing=type", content="name: a", overrides=("cache.num_blocks=9",))
    assert (case.config.name, case.config.cache.num_blocks) == ("a", 9)
    assert case.config.cache.sharing == "type"
