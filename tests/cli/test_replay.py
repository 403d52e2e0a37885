"""``dsv4kv replay``: what is printed, written and returned."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import Result

from dsv4kv.runs.store import load_record
from dsv4kv.traces import resolve_trace
from tests.cli import shell
from tests.replay.scenes import SMALL

pytestmark = pytest.mark.usefixtures("empty_folder")

invoke = partial(shell.invoke, "replay")

OPTIONS = [
    word
    for key, value in (SMALL | {"cache.num_blocks": 300}).items()
    for word in ("--set", f"{key}={value}")
]


def small(*arguments: str) -> Result:
    return invoke("builtin:chat", *OPTIONS, *arguments)


TIERED = (
    "--set", "cache.num_blocks=24", "--set", "cache.num_checkpoints=2",
    "--set", "tiers.host.capacity_bytes=2MB", "--set", "tiers.disk.capacity_bytes=1GB",
)  # fmt: skip
FLEET = ("--set", "fleet.replicas=2")


def test_what_came_back_from_below_is_told_on_every_medium() -> None:
    result = small(*TIERED, "--json", "a.json", "--chart", "a.html", "--verbose")
    assert (result.exit_code, result.stderr) == (0, "")
    found = load_record(Path("a.json")).cases[0].replay
    assert found
    assert found.tiers
    for medium in (result.stdout, Path("a.html").read_text("utf-8")):
        assert "Below the GPUs" in medium
        for tier in found.tiers.tiers:
            assert f"{tier.hit_tokens:,}" in medium


@pytest.mark.parametrize(
    ("options", "part", "changed", "sentence"),
    [
        (TIERED, "tiers", {"asked_tokens": 1}, "were asked of tiers"),
        (TIERED, "tiers", {"restored_tokens": 0, "asked_tokens": 0, "lost_tokens": {}},
         "came back"),
        (FLEET, "fleet", {"saved_tokens": 1}, "and the fleet"),
        (FLEET, "fleet", {"held_bytes": 1}, "and the fleet"),
    ],
)  # fmt: skip
def test_tiers_and_fleets_that_do_not_add_up_are_no_record(
    options: tuple[str, ...], part: str, changed: dict[str, Any], sentence: str
) -> None:
    small(*options, "--json", "a.json")
    found = getattr(load_record(Path("a.json")).cases[0].replay, part)
    with pytest.raises(ValidationError, match=sentence):
        type(found).model_validate(found.model_dump() | changed)


def test_a_trace_named_as_an_option_is_one_in_no_printed_command() -> None:
    Path("--html=x").write_bytes(resolve_trace("builtin:chat").read_bytes())
    said = invoke(*OPTIONS, "--json", "a.json", "--", "--html=x").stdout
    commands = [load_record(Path("a.json")).reproduce, *re.findall("dsv4kv plan .*", said)]
    assert [command.split()[2] for command in commands] == ["./--html=x"] * 2
