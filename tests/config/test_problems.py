import pytest

from .conftest import Load, Refuse


def test_all_problems_of_a_file_are_told_in_the_order_of_its_lines(refuse: Refuse) -> None:
    assert refuse(
        "cache:\n"
        "  block_tokens: 100\n"
        "  num_slots: 0\n"
        "model:\n"
        "  layer: [0]\n"
        "device: gpu\n"
        "workload: {synthetic: {input: {low: 5, high: 2}}}\n"
    ) == [
        "bench.yaml:2: cache.block_tokens is 100: give an integer above 0, a multiple of 128.",
        "bench.yaml:3: cache.num_slots is 0: give an integer above 0, or null.",
        (
            "bench.yaml:5: unknown key model.layer (did you mean model.layers?); "
            "model has preset, layers, pipeline, draft_layers, formats."
        ),
        "bench.yaml:6: device is 'gpu': give one of auto, cpu, cuda.",
        "bench.yaml:7: workload.synthetic.input: low (5) is above high (2).",
    ]


TOP = "name, device, backend, ops, model, cache, workload, measure"
WORDS = "(YAML reads on, off, yes and no as true or false: quote a word to keep it)"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "cache: {block_tokens: many}",
            (
                "cache.block_tokens is 'many': give an integer above 0, "
                "a multiple of 128 (128K and 1M work too)."
            ),
        ),
        (
            "cache: {block_tokens: 128.5}",
            "cache.block_tokens is 128.5: give an integer above 0, a multiple of 128.",
        ),
        (
            "cache: {block_tokens: null}",
            "cache.block_tokens is null: give an integer above 0, a multiple of 128.",
        ),
        (
            "cache: {block_tokens: [128]}",
            "cache.block_tokens is [128]: give an integer above 0, a multiple of 128.",
        ),
        (
            "measure: {memcpy_bytes: big}",
            (
                "measure.memcpy_bytes is 'big': give an integer at least "
                "1,048,576 (512MiB and 80GB work too)."
            ),
        ),
        (
            "cache: {num_slots: on}",
            f"cache.num_slots is true: give an integer above 0, or null {WORDS}.",
        ),
        (
            "cache: {num_slots: 1:30}",
            (
                "cache.num_slots is '1:30': give an integer above 0, or null "
                "(128K and 1M work too)."
            ),
        ),
        (
            "cache: {sharing: off}",
            f"cache.sharing is false: give one of model, type, layer {WORDS}.",
        ),
        (
            "cache: {sharing: modle}",
            "cache.sharing is 'modle': give one of model, type, layer (did you mean model?).",
        ),
        ("cache: {hadamard: maybe}", "cache.hadamard is 'maybe': give true or false."),
        ("name: yes", f"name is true: give text {WORDS}."),
        ("name: 4", "name is 4: give text (quote it to make it text)."),
        ("name: [a]", "name is ['a']: give text."),
        (
            f"measure: {{seed: 0x{'f' * 9_000}}}",
            (
                f"measure.seed is '0x{'f' * 25}...{'f' * 28}': "
                "give an integer at least 0 (and below 2^63)."
            ),
        ),
        ("model: {layers: 3}", "model.layers is 3: give a list of integers at least 0, or null."),
        (
            "model: {layers: [0, -1]}",
            "model.layers[1] is -1: give a list of integers at least 0, or null.",
        ),
        (
            "model: {layers: [no]}",
            f"model.layers[0] is false: give a list of integers at least 0, or null {WORDS}.",
        ),
        (
            "workload: {speculative: {acceptance: 2}}",
            "workload.speculative.acceptance is 2: give a number at least 0, at most 1.",
        ),
        (
            "model: {pipeline: 3}",
            (
                "model.pipeline is 3, but it is a section: indent its keys "
                "below it (stage, stages)."
            ),
        ),
        (
            "cache.block_tokens: 256",
            (
                "cache.block_tokens: a dot makes no section in YAML: "
                "write block_tokens indented below cache."
            ),
        ),
        ("on: 1", f"unknown key on; the top level has {TOP}."),
        ("12: 1", f"unknown key 12; the top level has {TOP}."),
    ],
)
def test_a_value_that_cannot_be_used_is_told_with_what_can(
    refuse: Refuse, text: str, sentence: str
) -> None:
    assert refuse(text) == [f"bench.yaml:1: {sentence}"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "1: the file is empty: a configuration is a mapping of {top}."),
        ("# nothing\n", "1: the file is empty: a configuration is a mapping of {top}."),
        ("- 1\n", "1: the file is a list: a configuration is a mapping of {top}."),
        ("words\n", "1: the file is a single value: a configuration is a mapping of {top}."),
        (
            "name: a\n---\nname: b\n",
            (
                "2: this is not YAML: expected a single document in the "
                "stream, but found another document."
            ),
        ),
        (
            "model:\n  layers: [0, 2\n",
            (
                "3: this is not YAML: while parsing a flow sequence, "
                "expected ',' or ']', but got '<stream end>'."
            ),
        ),
        (
            "cache:\n\tsharing: type\n",
            (
                "2: this is not YAML: while scanning for the next token, "
                "found character '\\t' that cannot start any token (indent with spaces, not tabs)."
            ),
        ),
        ("cache: *missing\n", "1: this is not YAML: found undefined alias 'missing'."),
        (
            "\ncache: {<<: 3}\n",
            (
                "2: this is not YAML: while constructing a mapping, expected a "
                "mapping or list of mappings for merging, but found scalar."
            ),
        ),
        ("\n[a]: 3\n", "2: a sequence is in the place of a key: write `key: value`."),
        ("cache: {{ slots }}\n", "1: a mapping is in the place of a key: write `key: value`."),
        ("\nname: !env HOME\n", "2: the tag !env is not allowed: write a plain value."),
        (
            "name: !!python/name:os.system x\n",
            (
                "1: the tag tag:yaml.org,2002:python/name:os.system "
                "is not allowed: write a plain value."
            ),
        ),
        (
            "\nmodel: &m\n  pipeline: *m\n",
            "2: an alias refers to the value that contains it: write the value out.",
        ),
        ("model: " + "[" * 3000, "1: the values are nested too deeply."),
        (
            "name: a\nname: \0\n",
            "2: the character '\\x00' is not allowed in YAML: is this a text file?",
        ),
        (
            b"name: a\n\xff\xfe\n",
            "2: byte 0xff is not UTF-8: a configuration is a YAML text file.",
        ),
    ],
)
def test_a_text_that_is_no_configuration_is_told_with_its_line(
    refuse: Refuse, text: str | bytes, line: str
) -> None:
    assert refuse(text) == [f"bench.yaml:{line.replace('{top}', TOP)}"]


def test_a_list_item_is_found_on_its_own_line(refuse: Refuse) -> None:
    refusal = refuse("model:\n  layers:\n    - 0\n    - -2\n")
    assert refusal == [
        "bench.yaml:4: model.layers[1] is -2: give a list of integers at least 0, or null."
    ]


def test_a_merged_value_is_found_where_it_is_written(refuse: Refuse) -> None:
    assert refuse(
        "workload:\n  synthetic:\n    input: &i\n      mean: 0\n    output:\n      <<: *i\n"
    ) == [
        f"bench.yaml:4: workload.synthetic.{place}.mean is 0: give an integer above 0."
        for place in ("input", "output")
    ]


SLOTS = "workload.concurrency (9) is above cache.num_slots (4): lower the one or raise the other."


def test_a_conflict_is_found_at_the_first_key_it_names_that_the_file_gives(
    refuse: Refuse,
) -> None:
    both = "cache:\n  num_slots: 4\nworkload:\n  concurrency: 9\n"
    assert refuse(both) == [f"bench.yaml:4: {SLOTS}"]
    one = "name: a\ncache:\n  num_slots: 4\n"
    assert refuse(one) == [f"bench.yaml:3: {SLOTS}".replace("(9)", "(8)")]


def test_a_conflict_with_an_override_names_the_override(refuse: Refuse) -> None:
    assert refuse("cache:\n  num_slots: 4\n", "workload.concurrency=9") == [
        f"--set workload.concurrency=9: {SLOTS}"
    ]
    assert refuse("{}", "workload.synthetic.input.high=5", "workload.synthetic.input.low=9") == [
        (
            "--set workload.synthetic.input.low=9: "
            "workload.synthetic.input: low (9) is above high (5)."
        )
    ]


def test_a_conflict_inside_a_section_is_found_there(refuse: Refuse) -> None:
    assert refuse("model:\n  draft_layers: true\n  pipeline:\n    stage: 2\n") == [
        "bench.yaml:4: model.pipeline: stage 2 of 1: stages count from 0."
    ]


def test_a_key_given_twice_is_refused(refuse: Refuse) -> None:
    assert refuse("cache:\n  num_slots: 4\n  num_slots: 4\n") == [
        "bench.yaml:3: num_slots is given twice, first on line 2: keep one."
    ]


@pytest.mark.parametrize("merge", ["{<<: [%s]}", "[%s]"])
def test_aliases_that_grow_without_end_are_refused(refuse: Refuse, merge: str) -> None:
    levels = ["a0: &a0 {k: 1}"]
    levels += [f"a{i}: &a{i} {merge % ', '.join([f'*a{i - 1}'] * 9)}" for i in range(1, 12)]
    (line,) = refuse("\n".join(levels))
    assert line.endswith(": YAML that holds itself, or many times the same.")


def test_a_long_text_is_shown_in_short(refuse: Refuse) -> None:
    (line,) = refuse(f"device: {'x' * 10_000}\n")
    assert "..." in line
    assert len(line) < 120


def test_a_number_too_long_to_be_one_is_refused(refuse: Refuse) -> None:
    (line,) = refuse(f"cache: {{num_blocks: {'9' * 5000}}}\n")
    assert line.startswith("bench.yaml:1: cache.num_blocks is '9999")


def test_no_sentence_speaks_of_pydantic(refuse: Refuse) -> None:
    told = "\n".join(
        refuse("name: 1\ndevice: 2\nmodel: 3\ncache: {sharing: 4, x: 5, num_slots: y}\n")
    )
    assert not {word for word in ("pydantic", "http", "Input", "extra_", "valid") if word in told}


def test_a_right_file_has_no_problems(load: Load) -> None:
    assert load("name: 'on'\n").config.name == "on"
