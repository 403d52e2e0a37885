from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.keys import render_yaml

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
