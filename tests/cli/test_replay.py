"""``dsv4kv replay``: what is printed, written and returned."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner, Result

from dsv4kv.cli import app
from dsv4kv.runs.parts import ReplayTiers
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


def test_a_sweep_with_tiers_says_what_came_back() -> None:
    result = small(*TIERED, "--axis", "tiers.host.write=write_through,write_back")
    assert "restored" in result.stdout
    assert "restored" not in small("--axis", "prefix.policy=lru,fifo").stdout


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"asked_tokens": 1}, "were asked of tiers"),
        ({"restored_tokens": 0, "asked_tokens": 0, "lost_tokens": {}}, "came back"),
    ],
)
def test_tiers_that_do_not_add_up_are_no_record(changed: dict[str, Any], sentence: str) -> None:
    small(*TIERED, "--json", "a.json")
    found = load_record(Path("a.json")).cases[0].replay
    assert found
    assert found.tiers
    assert found.tiers.restored_tokens
    with pytest.raises(ValidationError, match=sentence):
        ReplayTiers.model_validate(found.tiers.model_dump() | changed)


def test_a_trace_named_as_an_option_is_one_in_no_printed_command() -> None:
    Path("--html=x").write_bytes(resolve_trace("builtin:chat").read_bytes())
    said = invoke(*OPTIONS, "--json", "a.json", "--", "--html=x").stdout
    commands = [load_record(Path("a.json")).reproduce, *re.findall("dsv4kv plan .*", said)]
    assert [command.split()[2] for command in commands] == ["./--html=x"] * 2


@pytest.mark.parametrize("name", ["held.svg", "held.html"])
def test_a_chart_is_one_file(name: str) -> None:
    result = small("--chart", name)
    assert result.exit_code == 0
    content = Path(name).read_text("utf-8")
    assert content.lstrip().startswith(("<?xml", "<!doctype html", "<!DOCTYPE html"))
    assert "http://" not in content.replace("http://www.w3.org", "")


def test_options_are_settings() -> None:
    small("--policy", "lfu", "--gpus", "2", "--quiet", "--json", "run.json")  # fmt: skip
    (case,) = load_record(Path("run.json")).cases
    assert case.config["prefix"]["policy"] == "lfu"
    assert case.config["cost"]["gpus"] == 2


def test_limit_takes_the_first_requests() -> None:
    done = CliRunner(env={"COLUMNS": "100"}).invoke(
        app, ["replay", "builtin:chat", "--limit", "7"]
    )
    assert "7 requests of builtin:chat" in done.stdout
