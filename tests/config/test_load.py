import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.keys import keys, nearest_key, render_yaml
from dsv4kv.config.load import LoadedConfig, expand_axes, load_config, shipped_names
from dsv4kv.errors import ConfigError
from tests.examples import examples


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(content: str | bytes, *overrides: str) -> LoadedConfig:
    """Load a configuration text with overrides."""
    Path("bench.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
    return load_config("bench.yaml", overrides)


def refuse(content: str) -> list[str]:
    """Load a configuration that must be refused and return the lines of the refusal."""
    with pytest.raises(ConfigError) as refusal:
        load(content)
    return str(refusal.value).splitlines()


def test_a_shipped_name_comes_before_what_the_folder_has() -> None:
    Path("smoke").write_text("name: mine")
    assert load_config("smoke").config.name == "smoke"
    assert load_config("./smoke").config.name == "mine"
    Path("default").mkdir()
    assert load_config(None).config.name == "default"


def test_a_missing_file_lists_the_shipped_names_and_the_nearest() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config("smok")
    assert str(refusal.value) == (
        "configuration 'smok' cannot be read (No such file or directory) (did you mean smoke?): "
        "give the path of a YAML file or a shipped name (bookkeeping, default, gpu, smoke)."
    )


def test_a_section_in_part_or_empty_keeps_the_defaults_of_its_place() -> None:
    lengths = load("workload: {synthetic: {output: {sigma: 0.5}}}").config.workload.synthetic
    assert lengths.output.mean == BenchConfig().workload.synthetic.output.mean == 128
    assert load("cache:\n  # block_tokens: 256\n").config == BenchConfig()


def test_anchors_and_merge_keys_work() -> None:
    lengths = load(
        "workload:\n"
        "  synthetic:\n"
        "    input: &lengths {kind: fixed, mean: 100}\n"
        "    output: {<<: *lengths, mean: 20}\n"
    ).config.workload.synthetic
    assert (lengths.input.mean, lengths.output.kind, lengths.output.mean) == (100, "fixed", 20)


FILES = examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
SCALARS = (
    "1|-1|0.5|128K|8e1|010|0b_|on|null|~|.inf|.nan|2026-01-31|model|''|*a|&a 1|!x 1|!!int x|"
    f"!!python/name:os.system x|{'9' * 5000}"
).split("|")
NAMES = ["mean", "stage", "<<", "on", "&a x", "*a ", "[1]"]


def flow_list(items: list[str]) -> str:
    return f"[{', '.join(items)}]"


def flow_mapping(pairs: dict[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in pairs.items()) + "}"


VALUES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.lists(inner, max_size=3).map(flow_list)
        | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3).map(flow_mapping)
    ),
)
KEYS = st.sampled_from(["name", "cache", "cache.block_tokens", "model.layers", "measure", "x"])


def told(content: str | bytes) -> bool:
    """Whether a text loads, or every line of its refusal names the file and a line."""
    try:
        load(content)
    except ConfigError as error:
        return all(re.match(r"bench\.yaml:[1-9]", line) for line in str(error).splitlines())
    return True


@FILES
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_load_or_are_refused(content: bytes) -> None:
    assert told(content)


def test_of_many_problems_the_first_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    monkeypatch.setattr("dsv4kv.config.load.unknown_key", lambda path, _: searched.append(path))
    lines = refuse("".join(f"k{number}: 1\n" for number in range(3_000)))
    assert searched == [f"k{number}" for number in range(20)]
    assert lines[-1] == "bench.yaml:21: and 2,980 problems more."


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no key: "):
        load(b'"a\\ud800": 1')


@FILES
@given(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4))
def test_any_yaml_values_load_or_are_refused(pairs: list[tuple[str, str]]) -> None:
    lines = []
    for key, value in pairs:
        section, _, name = key.rpartition(".")
        lines.append(f"{section}: {{{name}: {value}}}" if section else f"{name}: {value}")
    assert told("\n".join(lines))


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("cache.block_tokens=256", "cache", "block_tokens", 256),
        ("cache.max_context_tokens=128K", "cache", "max_context_tokens", 131072),
        ("cache.num_blocks='4096'", "cache", "num_blocks", 4096),
        ("workload.concurrency=010", "workload", "concurrency", 10),
        ("measure.memcpy_bytes=80MB", "measure", "memcpy_bytes", 80 * 10**6),
        ("model.layers=[0, 2, 3]", "model", "layers", (0, 2, 3)),
        ("model.layers = null", "model", "layers", None),
        ("workload.trace=a=b.jsonl", "workload", "trace", "a=b.jsonl"),
        ("workload.trace='7'", "workload", "trace", "7"),
        ("workload.trace=12:30", "workload", "trace", "12:30"),
        ("cache.hadamard=off", "cache", "hadamard", False),
    ],
)
def test_a_value_is_read_as_yaml(override: str, section: str, key: str, value: object) -> None:
    assert getattr(getattr(load("{}", override).config, section), key) == value


@pytest.mark.parametrize("merge", ["{<<: [%s]}", "[%s]"])
def test_aliases_that_grow_without_end_are_refused(merge: str) -> None:
    levels = ["a0: &a0 {k: 1}"]
    levels += [f"a{i}: &a{i} {merge % ', '.join([f'*a{i - 1}'] * 9)}" for i in range(1, 12)]
    (line,) = refuse("\n".join(levels))
    assert line.endswith(": YAML that holds itself, or many times the same.")


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from(["model", "type", "layer"]), min_size=1, max_size=3, unique=True),
)
def test_axes_expand_to_their_product(blocks: list[int], sharing: list[str]) -> None:
    axes = [f"cache.num_blocks={','.join(map(str, blocks))}", f"cache.sharing={','.join(sharing)}"]
    cases = expand_axes(load_config("default"), [], axes)
    points = [(case.config.cache.num_blocks, case.config.cache.sharing) for case in cases]
    assert points == list(itertools.product(blocks, sharing))
    assert [tuple(case.axis.values()) for case in cases] == points
    assert all(list(case.axis) == ["cache.num_blocks", "cache.sharing"] for case in cases)


def test_commas_inside_brackets_and_quotes_do_not_split() -> None:
    axes = ["model.layers=[0,2], [0,2,3],null", 'name="a,b",c']
    cases = expand_axes(load_config("default"), [], axes)
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
def test_too_many_points_are_refused_before_they_are_made(axes: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--axis: more than 4,096 points: leave values out"):
        expand_axes(load_config("default"), [], axes)


def test_the_file_and_the_overrides_stand_beneath_the_axes() -> None:
    overrides = ["cache.num_blocks=9"]
    (case,) = expand_axes(load("name: a", *overrides), overrides, ["cache.sharing=type"])
    assert (case.config.name, case.config.cache.num_blocks) == ("a", 9)
    assert case.config.cache.sharing == "type"


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
def test_a_rendered_configuration_loads_equal(values: dict[str, Any]) -> None:
    config = BenchConfig.model_validate(values)
    assert load(render_yaml(config)).config == config


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_configuration_is_valid_and_carries_its_name(name: str) -> None:
    assert load_config(name).config.name == name


@pytest.mark.parametrize("path", keys())
def test_a_key_with_one_letter_missing_is_recognised(path: str) -> None:
    section, dot, name = path.rpartition(".")
    for letter in range(len(name)):
        misspelt = f"{section}{dot}{name[:letter]}{name[letter + 1 :]}"
        assert nearest_key(misspelt) == (misspelt if misspelt in keys() else path)
