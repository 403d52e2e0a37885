import pytest

from dsv4kv.config.bench import BenchConfig

from .conftest import Load, Refuse

CACHE = (
    "block_tokens, sharing, prefix, max_context_tokens, num_blocks, num_slots, state, "
    "prepare, hadamard, rope"
)


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("cache.block_tokens=256", "cache", "block_tokens", 256),
        ("cache.max_context_tokens=128K", "cache", "max_context_tokens", 131072),
        ("cache.num_blocks=1M", "cache", "num_blocks", 2**20),
        ("measure.memcpy_bytes=64MiB", "measure", "memcpy_bytes", 2**26),
        ("model.layers=[0, 2, 3]", "model", "layers", (0, 2, 3)),
        ("model.layers = null", "model", "layers", None),
        ("workload.trace=builtin:chat", "workload", "trace", "builtin:chat"),
        ("workload.trace=a=b.jsonl", "workload", "trace", "a=b.jsonl"),
        ("workload.trace='7'", "workload", "trace", "7"),
        ("cache.hadamard=off", "cache", "hadamard", False),
    ],
)
def test_a_value_is_read_as_yaml(
    load: Load, override: str, section: str, key: str, value: object
) -> None:
    assert getattr(getattr(load("{}", override).config, section), key) == value


def test_an_override_beats_the_file_and_leaves_the_rest(load: Load) -> None:
    config = load("cache: {block_tokens: 256, sharing: type}", "cache.block_tokens=512").config
    assert (config.cache.block_tokens, config.cache.sharing) == (512, "type")


def test_an_override_of_a_nested_key_keeps_the_defaults_beside_it(load: Load) -> None:
    assert load("{}", "workload.synthetic.output.sigma=0.5").config.workload.synthetic.output == (
        BenchConfig().workload.synthetic.output.model_copy(update={"sigma": 0.5})
    )


def test_of_two_overrides_of_a_key_the_last_counts(load: Load) -> None:
    assert load("{}", "name=a", "name=b").config.name == "b"


def test_an_override_mends_a_wrong_value_of_the_file(load: Load) -> None:
    assert load("cache: {block_tokens: 1}", "cache.block_tokens=128").config == BenchConfig()


def test_an_override_does_not_mend_a_section_that_is_none(refuse: Refuse) -> None:
    assert refuse("\nmodel: {pipeline: 3}", "model.pipeline.stage=0") == [
        (
            "bench.yaml:2: model.pipeline is 3, but it is a section: "
            "indent its keys below it (stage, stages)."
        )
    ]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "cache.block_token=1",
            (
                "unknown key cache.block_token (did you mean cache.block_tokens?);"
                f" cache has {CACHE}."
            ),
        ),
        (
            "cahce.sharing=type",
            (
                "unknown key cahce.sharing (did you mean cache.sharing?); "
                "the top level has name, device, backend, ops, model, cache, workload, measure."
            ),
        ),
        ("cache=1", f"cache is a section: set one of its keys ({CACHE})."),
        ("cache.sharing", "write KEY=VALUE, for example cache.block_tokens=256."),
        ("=1", "write KEY=VALUE, for example cache.block_tokens=256."),
        ("cache.sharing=", "the value is missing."),
        ("model.layers= ", "the value is missing; write model.layers=null for none."),
        (
            "model.layers=[1",
            (
                "this is not YAML: while parsing a flow sequence, expected ',' or ']',"
                " but got '<stream end>'."
            ),
        ),
        ("name=!x y", "the tag !x is not allowed: write a plain value."),
        ("name=#", "name is null: give text."),
        (
            "cache.sharing=modle",
            "cache.sharing is 'modle': give one of model, type, layer (did you mean model?).",
        ),
        (
            "model.layers=[0, x]",
            "model.layers[1] is 'x': give a list of integers at least 0, or null.",
        ),
    ],
)
def test_an_override_that_cannot_be_used_is_named(
    refuse: Refuse, override: str, sentence: str
) -> None:
    assert refuse("{}", override) == [f"--set {override}: {sentence}"]


def test_all_overrides_that_cannot_be_read_are_told(refuse: Refuse) -> None:
    assert len(refuse("{}", "zzz=1", "name=a", "cache.sharing")) == 2


def test_wrong_values_of_file_and_overrides_are_told_together(refuse: Refuse) -> None:
    assert refuse("device: gpu", "cache.sharing=all") == [
        "--set cache.sharing=all: cache.sharing is 'all': give one of model, type, layer.",
        "bench.yaml:1: device is 'gpu': give one of auto, cpu, cuda.",
    ]
