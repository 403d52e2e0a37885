"""Command lines of nsys and ncu."""

from pathlib import Path

import pytest

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.launch import (
    NCU_METRICS,
    ncu_profile,
    nsys_export,
    nsys_profile,
    require_tool,
    version_of,
)
from tests.measure.profilers.tools import NSYS_HELP, install

PROGRAM = ["/usr/bin/python", "-m", "dsv4kv", "profile", "smoke"]


def test_nsys_traces_nodes_of_graphs_between_start_and_stop_and_keeps_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = install("nsys", tmp_path, monkeypatch)
    command = nsys_profile(str(nsys.path), Path("out/step"), PROGRAM)
    assert command.words == [
        str(nsys.path),
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--discard-environment=true",
        "--force-overwrite=true",
        "--output=out/step",
        *PROGRAM,
    ]
    assert command.dropped == []


def test_options_that_the_installed_nsys_does_not_list_are_dropped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = NSYS_HELP.replace("--discard-environment=", "").replace("--cpuctxsw=", "")
    nsys = install("nsys", tmp_path, monkeypatch, profile=old, export="--type= --output=")
    command = nsys_profile(str(nsys.path), Path("out/step"), PROGRAM)
    assert command.dropped == ["--cpuctxsw=none", "--discard-environment=true"]
    assert not set(command.dropped) & set(command.words)
    export = nsys_export(str(nsys.path), Path("a.nsys-rep"), Path("a.sqlite"))
    assert export.words[1:] == ["export", "--type=sqlite", "--output=a.sqlite", "a.nsys-rep"]


def test_a_help_that_says_nothing_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = install("nsys", tmp_path, monkeypatch, profile="")
    assert nsys_profile(str(nsys.path), Path("step"), PROGRAM).dropped == []


@pytest.mark.parametrize("missing", ["--capture-range=", "--capture-range-end="])
def test_an_option_is_not_taken_for_known_because_another_begins_alike(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = install("nsys", tmp_path, monkeypatch, profile=NSYS_HELP.replace(missing, ""))
    (dropped,) = nsys_profile(str(nsys.path), Path("step"), PROGRAM).dropped
    assert dropped.startswith(missing)


def test_ncu_leaves_caches_and_clocks_alone_and_looks_at_steps_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu = install("ncu", tmp_path, monkeypatch)
    command = ncu_profile(str(ncu.path), Path("step"), PROGRAM, "gather", own_domain=True)
    assert command.words == [
        str(ncu.path),
        "--nvtx",
        "--nvtx-include=dsv4kv@step/",
        "--graph-profiling=node",
        "--cache-control=none",
        "--clock-control=none",
        "--force-overwrite",
        "--kernel-name=regex:gather",
        f"--metrics={','.join(NCU_METRICS)}",
        "--export=step",
        *PROGRAM,
    ]


def test_without_a_domain_of_its_own_ncu_finds_steps_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu = install("ncu", tmp_path, monkeypatch)
    words = ncu_profile(str(ncu.path), Path("step"), PROGRAM, None, own_domain=False).words
    assert "--nvtx-include=step/" in words
    assert not any(word.startswith("--kernel-name") for word in words)


@pytest.mark.parametrize(
    ("name", "version"), [("nsys", "2025.5.1.121-255136380782v0"), ("ncu", "2025.3.1.0")]
)
def test_the_version_is_what_the_tool_says(
    name: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert version_of(str(install(name, tmp_path, monkeypatch).path)) == version


def test_a_tool_that_is_not_there_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProfileError, match="nsys is not on PATH: install NVIDIA Nsight Systems"):
        require_tool("nsys", "Nsight Systems")
    assert version_of("/nowhere/nsys") is None
