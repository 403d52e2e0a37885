"""What the kernels compile to, for every architecture: no GPU is needed to know.

By the newest NVRTC and for Hopper, one example of every kernel and variant;
``DSV4KV_COMPILERS=1`` (``make compilers``) asks the others, too, for the other architectures and
about the whole catalogue.
"""

import os
import pickle
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest
import torch

from dsv4kv.ops.cuda import inspection as su
from dsv4kv.ops.cuda.inspection import ARCHITECTURES, Example, catalogue
from dsv4kv.ops.launches.pages import RESIDENT_BLOCKS
from tests.cuda.nvrtc import VERSIONS, run_with
from tests.cuda.toolchain import needs_disassembler

INSERT_BLOCKS = RESIDENT_BLOCKS * 132
_HOPPER_REGISTERS = 65_536  # of a multiprocessor; so on sm_80, sm_100 and sm_120

EVERY = bool(os.environ.get("DSV4KV_COMPILERS"))
SERVING = ("sm_90a", "sm_100a")
"""The machines that the model is likely to be met on."""
ASKED_ARCHITECTURES = ARCHITECTURES if EVERY else SERVING[:1]
ASKED = VERSIONS if EVERY else VERSIONS[-1:]

pytestmark = needs_disassembler


@pytest.fixture(scope="module", params=ASKED, ids="nvrtc-{}".format)
def version(request: pytest.FixtureRequest) -> str:
    """Of NVRTC."""
    return str(request.param)


def of_every_kernel_and_variant() -> Iterator[Example]:
    """Modules that have what none before them has, with all of their kernels.

    The others are the same code for other formats, page sizes and ratios.
    """
    examples = catalogue()
    first: dict[tuple[str, ...], Example] = {}
    for example in examples:
        variant = re.findall(r", ([a-z]+)$", example.subject)
        first.setdefault((example.launch.kernel, *variant), example)
    modules = {example.launch.module for example in first.values()}
    return (example for example in examples if example.launch.module in modules)


EXAMPLES = catalogue() if EVERY else list(of_every_kernel_and_variant())


@pytest.fixture(scope="module")
def findings(version: str) -> list[su.Finding]:
    """Their kernels, compiled by one NVRTC in a process of its own."""
    reports = pickle.loads(run_with(version, "-m", __name__))
    asked = [
        (example, architecture)
        for example in EXAMPLES
        for architecture in ASKED_ARCHITECTURES
        if example.runs_on(architecture)
    ]
    return [su.Finding(*each, report) for each, report in zip(asked, reports, strict=True)]


def test_no_kernel_uses_local_memory_and_all_wait_for_the_one_before(
    findings: list[su.Finding],
) -> None:
    assert list(su.broken_promises(findings)) == []


def test_plans_pass_the_arguments_that_kernels_take(findings: list[su.Finding]) -> None:
    for finding in findings:
        arguments = finding.example.launch.arguments
        sizes = finding.report.parameter_bytes
        assert len(arguments) == len(sizes), finding.name
        for argument, size in zip(arguments, sizes, strict=True):
            assert size == 8 if isinstance(argument, torch.Tensor) else size in {4, 8}


def test_grids_of_blocks_that_stay_are_what_132_multiprocessors_hold(
    findings: list[su.Finding],
) -> None:
    """With the registers that a thread got: so all of an insert's blocks run from the start."""
    staying = [
        finding
        for finding in findings
        if fnmatchcase(finding.name, "*_insert *, V4*resident") and finding.architecture in SERVING
    ]
    assert {finding.kernel for finding in staying} == {"entry_insert", "window_insert"}
    for finding in staying:
        assert _resident_blocks(finding) * 132 == INSERT_BLOCKS, finding.name


def _resident_blocks(finding: su.Finding) -> int:
    """Blocks that the registers of a multiprocessor are enough for; a warp takes 256 at a time."""
    registers = -(-finding.report.registers // 8) * 8
    return _HOPPER_REGISTERS // (registers * finding.example.launch.block)


def name_of(example: Example) -> str:
    return f"{example.launch.kernel} {example.subject}"


def test_machine_code_is_as_in_the_shipped_baseline(
    findings: list[su.Finding], version: str
) -> None:
    """``python -m tests.cuda.nvrtc kernels --write-baseline`` takes what is meant as it is."""
    names = {name_of(example) for example in EXAMPLES}
    baseline = su.load_baseline(version)
    shown = {name: found for name, found in baseline.items() if name in names}
    assert list(su.drift(findings, shown)) == []


@pytest.mark.parametrize("version", ASKED, indirect=True)
def test_the_shipped_baseline_has_the_kernels_of_the_catalogue(version: str) -> None:
    baseline, architectures = su.load_baseline(version), {*ASKED_ARCHITECTURES}
    asked = {name for name, found in baseline.items() if architectures & found.keys()}
    assert asked == {
        name_of(example) for example in catalogue() if any(map(example.runs_on, architectures))
    }


if __name__ == "__main__":
    found = su.survey(EXAMPLES, ASKED_ARCHITECTURES)
    pickle.dump([finding.report for finding in found], sys.stdout.buffer)
