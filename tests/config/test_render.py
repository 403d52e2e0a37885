from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.keys import keys, render_yaml
from dsv4kv.view.config import schema_table
from tests.view.terminal import shown

from .conftest import Load

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
CONFIGS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "name": TEXT,
        "model": st.fixed_dictionaries(
            {"layers": st.none() | st.lists(st.integers(0, 10**9), max_size=60)}
        ),
        "cache": st.fixed_dictionaries({"hadamard": st.booleans()}),
        "workload": st.fixed_dictionaries(
            {
                "trace": st.none() | TEXT,
                "speculative": st.fixed_dictionaries({"acceptance": st.floats(0, 1)}),
            }
        ),
    }
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CONFIGS)
def test_loading_a_rendered_configuration_gives_it_back(
    load: Load, values: dict[str, Any]
) -> None:
    config = BenchConfig.model_validate(values)
    assert load(render_yaml(config)).config == config


def test_every_key_is_rendered_below_its_description() -> None:
    lines = [line.strip() for line in render_yaml(BenchConfig()).splitlines()]
    expected = [line for key in keys().values() for line in (key.description, key.path)]
    assert [line.removeprefix("# ") for line in lines[::2]] == expected[::2]
    names = [path.rpartition(".")[2] for path in expected[1::2]]
    assert [line.partition(":")[0] for line in lines[1::2]] == names


def test_the_table_has_a_row_for_every_key_with_what_it_takes_and_its_default() -> None:
    rows = shown(schema_table(), width=1200).splitlines()[2:]
    assert len(rows) == len(keys())
    for row, key in zip(rows, keys().values(), strict=True):
        assert row.strip().startswith(key.path.rpartition(".")[2])
        assert key.is_section or key.expected in row
        assert row.rstrip().endswith(key.description)
