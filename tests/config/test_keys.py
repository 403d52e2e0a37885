import pytest

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.keys import keys, keys_of, nearest_key, unknown_key


def test_every_key_of_the_schema_is_listed_in_its_order() -> None:
    assert keys_of("") == list(BenchConfig.model_fields)
    for section in (key for key in keys().values() if key.is_section):
        part = BenchConfig()
        for name in section.path.split("."):
            part = getattr(part, name)
        assert keys_of(section.path) == list(type(part).model_fields)


def test_every_key_has_a_description_of_one_line() -> None:
    assert all(key.description and "\n" not in key.description for key in keys().values())


def test_a_default_is_that_of_its_place() -> None:
    assert keys()["workload.synthetic.input.mean"].default == 1024
    assert keys()["workload.synthetic.output.mean"].default == 128


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("name", "text"),
        ("cache.block_tokens", "an integer above 0, a multiple of 128"),
        ("cache.num_blocks", "an integer above 0, or null"),
        ("cache.hadamard", "true or false"),
        ("cache.sharing", "one of model, type, layer"),
        ("model.layers", "a list of integers at least 0, or null"),
        ("model.formats.indexer", "one of mxfp4, fp8, bf16, or null"),
        ("workload.speculative.acceptance", "a number at least 0, at most 1"),
        ("measure.memcpy_bytes", "an integer at least 1,048,576"),
    ],
)
def test_what_a_key_takes_is_told_in_words(path: str, expected: str) -> None:
    assert keys()[path].expected == expected


@pytest.mark.parametrize("path", keys())
def test_a_key_with_one_letter_missing_is_recognised(path: str) -> None:
    section, dot, name = path.rpartition(".")
    for letter in range(len(name)):
        misspelt = f"{section}{dot}{name[:letter]}{name[letter + 1 :]}"
        assert nearest_key(misspelt) == (misspelt if misspelt in keys() else path)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("cahce.block_tokens", "cache.block_tokens"),
        ("block_tokens", "cache.block_tokens"),
        ("workload.block_token", "cache.block_tokens"),
        ("workload.seed", "measure.seed"),
        ("zzz", None),
    ],
)
def test_a_misplaced_key_is_recognised(given: str, meant: str | None) -> None:
    assert nearest_key(given) == meant


@pytest.mark.parametrize("path", ["model.pipeline.zzz", "model.pipeline.zzz.stage.zzz"])
def test_an_unknown_key_lists_the_keys_of_the_nearest_section(path: str) -> None:
    assert unknown_key(path) == f"unknown key {path}; model.pipeline has stage, stages."
