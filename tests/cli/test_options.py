"""Options that a help shows: few enough to be read, all of them with ``--help-all``."""

import re

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.engines.names import engine_family
from dsv4kv.files import shipped_names
from tests.commands import leaves

MOST = 130
OPTIONS = {
    name: [each for each in command.params if each.param_type_name == "option" and each.help]
    for name, command in leaves().items()
}


def test_all_helps_together_show_at_most_130_options() -> None:
    shown = [
        f"{name} {each.opts[0]}"
        for name, options in OPTIONS.items()
        for each in options
        if not each.hidden and each.name != "help"
    ]
    assert len(shown) <= MOST, shown


@pytest.mark.parametrize("name", OPTIONS)
def test_help_all_shows_every_option_and_how_many_help_hides(name: str) -> None:
    brief, whole = (
        CliRunner(env={"COLUMNS": "100"}).invoke(app, [*name.split(), way]).output
        for way in ("--help", "--help-all")
    )
    hidden = [each for each in OPTIONS[name] if each.hidden]
    assert (f"--help-all shows {len(hidden)} more options." in brief) == bool(hidden)
    for option in OPTIONS[name]:
        assert re.search(rf"(?m)^│ \*? *{option.opts[0]}\b", whole)


@pytest.mark.parametrize("name", ["bench", "plan", "profile", "replay"])
def test_json_prints_everywhere_and_takes_a_file_where_it_is_also_written(name: str) -> None:
    def json_of(*words: str) -> object:
        return leaves()[name].make_context(name, [*words]).params["json_"]

    assert json_of("--json") == json_of("--json", "--verbose") == json_of("--json", "-") == "-"
    assert json_of("--json", "run.json", "--verbose") == json_of("--json=run.json") == "run.json"
    assert json_of() is None


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("budget --engine sg", ["sglang", *engine_family("sglang")]),
        ("replay --rule vllm-v4:de", ["vllm-v4:dense"]),
        ("trace mrc --rule vllm,sglang-v4:t", ["vllm,sglang-v4:tail"]),
        ("plan --model ", shipped_names("models")),
        ("bench op --top", ["--topk"]),
    ],
)
def test_a_shell_completes_names_of_engines_rules_and_models(
    line: str, completed: list[str]
) -> None:
    words = f"dsv4kv {line}"
    asked = {"_DSV4KV_COMPLETE": "complete_bash", "COMP_WORDS": words}
    shell = CliRunner(env=asked | {"COMP_CWORD": str(words.count(" "))})
    assert shell.invoke(app, prog_name="dsv4kv").output.split() == completed
