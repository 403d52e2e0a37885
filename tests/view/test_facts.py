"""Facts above and below the tables."""

import shlex
import subprocess

import pytest

from dsv4kv.view.facts import cache_facts, header, setting, tokens_per_second, totals_facts
from tests.runs.records import (
    make_cache,
    make_case,
    make_environment,
    make_record,
    make_totals,
)
from tests.view.terminal import shown


def test_the_model_is_told_with_the_layers_held() -> None:
    assert "v4-flash, 6 of 43 layers held: 2 swa, 2 csa, 2 hca" in shown(header(make_record()))


def test_the_models_of_a_sweep_are_told_once_each() -> None:
    small = make_cache(layers={"swa": 1})
    record = make_record(make_case(), make_case(), make_case(cache=small))
    assert (
        shown(header(record))
        .replace("\n          ", " ")
        .startswith(
            "model     v4-flash, 6 of 43 layers held: 2 swa, 2 csa, 2 hca; "
            "v4-flash, 1 of 43 layers held: 1 swa\n"
        )
    )


def test_the_command_that_repeats_a_run_is_one_that_a_shell_takes_however_narrow() -> None:
    words = ["bench", "smoke", "--set", "workload.trace=a file, of ours", *["--axis", "a=1"] * 9]
    command = shlex.join(["dsv4kv", *words])
    record = make_record().model_copy(update={"reproduce": command})
    for width in (60, 80, 1000):
        _, printed = shown(header(record), width=width).split("repeat    ")
        assert max(map(len, printed.splitlines())) <= width
        done = subprocess.run(
            ["sh", "-c", f"dsv4kv() {{ printf '%s\\n' \"$@\"; }}; {printed}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines() == words


def test_the_machine_is_told_with_its_threads() -> None:
    text = shown(header(make_record()))
    assert "AMD EPYC 9554, 2 CPUs, 1 torch thread, 24.0 GiB memory, load 0.3\n" in text
    threads = [make_case(config={"measure": {"threads": n}}) for n in (4, 1)]
    assert "1 or 4 torch threads" in shown(header(make_record(*threads)))


def test_absent_facts_of_the_machine_are_left_out() -> None:
    bare = make_environment(
        cpu=None, cpu_count=None, memory_bytes=None, load_1min=None, git_sha=None, versions={}
    )
    text = shown(header(make_record(make_case(config={}), environment=bare)))
    assert "machine   unknown CPU\n" in text
    assert "software  Python 3.12.4, Linux" in text


def test_a_clean_revision_is_not_called_dirty() -> None:
    clean = make_record(environment=make_environment(git_dirty=False))
    assert "git 0123456789ab (dirty)" in shown(header(make_record()))
    assert "git 0123456789ab, Linux" in shown(header(clean)).replace("\n          ", " ")


def test_a_run_without_a_trace_is_synthetic() -> None:
    assert "trace     synthetic" in shown(header(make_record(trace_source=None)))


@pytest.mark.parametrize(
    ("sharing", "told"),
    [
        ("model", "one block table for the whole model"),
        ("type", "a block table per layer type"),
        ("layer", "a block table per layer;"),
    ],
)
def test_sharing_is_told_in_words(sharing: str, told: str) -> None:
    assert told in shown(cache_facts(make_cache(sharing=sharing)))


def test_the_peak_is_a_share_of_the_blocks_of_all_tables() -> None:
    totals = make_totals(peak_blocks=87)
    shared = shown(totals_facts(totals, make_cache(total_blocks=870)))
    assert "87 of 870 (10.0 %) blocks held" in shared
    assert "peak      87 blocks held" in shown(totals_facts(totals, None))


def test_the_rate_of_tokens_counts_prompt_and_output() -> None:
    totals = make_totals(input_tokens=900, output_tokens=100, wall_ns=500_000_000)
    assert tokens_per_second(totals) == pytest.approx(2000)
    text = shown(totals_facts(totals, make_cache()))
    assert "2,000 tokens/s in and out, 200 tokens/s out (one run: no interval)" in text


def test_no_time_gives_no_rate() -> None:
    assert tokens_per_second(make_totals(wall_ns=0)) is None
    assert "rate      –" in shown(totals_facts(make_totals(wall_ns=0), None))


def test_drafts_are_told_only_with_speculation() -> None:
    assert "drafts" not in shown(totals_facts(make_totals(), make_cache()))
    totals = make_totals(drafted_tokens=2000, rolled_back_tokens=500)
    text = shown(totals_facts(totals, make_cache()))
    assert "drafts    2,000 proposed, 500 rolled back, 75.0 % accepted" in text


def test_a_setting_that_is_not_there_is_none() -> None:
    assert setting(make_case(), "measure.threads") == 1
    assert setting(make_case(), "measure.threads.deeper") is None
    assert setting(make_case(config={}), "measure.threads") is None


@pytest.mark.parametrize("config", [{"workload": 1.0}, {"measure": {"threads": []}}])
def test_a_configuration_of_other_shapes_is_shown(config: dict[str, object]) -> None:
    assert header(make_record(make_case(config=config), trace_source=None))
