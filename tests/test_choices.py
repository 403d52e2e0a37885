"""A row in a registry is all that a new choice needs: everything that names choices knows it."""

from collections.abc import Mapping

import pytest

from dsv4kv import choices
from dsv4kv.choices import Choice, choose, explained
from dsv4kv.config import bench, experiments, replay
from dsv4kv.core import policies
from dsv4kv.errors import ConfigError

REGISTRIES = {
    name: registry
    for module in (choices, policies, bench, replay, experiments)
    for name, registry in vars(module).items()
    if isinstance(registry, dict) and name.isupper()
    if all(isinstance(row, Choice) for row in registry.values())
}
ROWS = [(name, row) for name, registry in REGISTRIES.items() for row in registry]


@pytest.mark.parametrize(("registry", "name"), ROWS)
def test_every_row_says_what_it_does_in_one_line_and_where_it_is_done(
    registry: str, name: str
) -> None:
    row = REGISTRIES[registry][name]
    assert row.explains == row.explains.strip(". \n")
    assert 0 < len(row.explains) < 100
    if row.where and row.where != "ops.cuda":  # needs a GPU
        assert row.load() is not None


def test_a_name_that_is_not_there_gets_a_sentence_with_the_nearest_and_all() -> None:
    rows: Mapping[str, Choice] = {"lru": Choice("a"), "arc": Choice("b")}
    with pytest.raises(ConfigError) as refusal:
        choose(rows, "lri", "a policy")
    assert str(refusal.value) == (
        "'lri' is not a policy (did you mean lru?): choose one of lru, arc."
    )
    assert explained(rows) == "lru (a), arc (b)"
