"""Ids that contradict each other are found, wherever they are."""

from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.prefix.paths import find_contradiction
from dsv4kv.traces.collect import collect_paths
from dsv4kv.traces.request import Request
from tests.prefix.traces import Text, texts, to_table

SMALL = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True), min_size=1)


def table_of(paths: list[list[int]]):  # type: ignore[no-untyped-def]
    return collect_paths(
        Request(float(i), len(path), 0, tuple(path), 1) for i, path in enumerate(paths)
    )


@given(texts())
def test_prompts_that_form_a_tree_do_not_contradict(prompts: list[Text]) -> None:
    assert find_contradiction(to_table(prompts)) is None


@given(SMALL)
def test_a_contradiction_is_an_id_with_two_parents(paths: list[list[int]]) -> None:
    parents: dict[int, set[int | None]] = {}
    for path in paths:
        for before, block in zip([None, *path], path, strict=False):
            parents.setdefault(block, set()).add(before)
    found = find_contradiction(table_of(paths))
    assert (found is None) == all(len(those) == 1 for those in parents.values())
    if found is not None:
        assert len(parents[found.id]) > 1
        assert paths[found.request][found.block] == found.id
        here = [None, *paths[found.request]][found.block]
        other = paths[found.earlier]
        assert [None, *other][other.index(found.id)] != here
