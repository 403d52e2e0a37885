"""Inputs are read as people write them; a wrong value is refused with its option."""

import pytest

from dsv4kv.budget.inputs import read_inputs
from dsv4kv.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("context", "0", "--context: 0 is too few: give at least 1."),
        ("gpus", "two", "--gpus: 'two' is not a count: write 64, 128K or 1M (1K = 1,024)."),
        ("hbm", "0", "--hbm: 0 is too little: give at least 1 B."),
        ("memory-fraction", "90",
         "--memory-fraction: 90 is no share of a GPU: give a number above 0, at most 1."),
        ("memory-fraction", "x", "--memory-fraction: 'x' is not a number: write 0.9 or 1/2."),
        ("host-ratio", "9" * 400,
         f"--host-ratio: '{'9' * 400}' is not a number: write 0.9 or 1/2."),
        ("host-ratio", "0", "--host-ratio: 0 is too little: give a number above 0."),
        (
            "state",
            "fp16",
            (
                "--state: 'fp16' is not a state format (did you mean bf16?): choose one of fp32, "
                "bf16, online."
            ),
        ),
        ("model", " ", "--model: the value is missing."),
    ],
)  # fmt: skip
def test_a_wrong_value_is_a_sentence_with_its_option(name: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_inputs({name: text})
    assert str(refusal.value) == sentence
