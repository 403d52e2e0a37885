"""What the kernels compile to, for every architecture: no GPU is needed to know."""

import pytest
import torch

from dsv4kv.ops.cuda.baseline import drift, load_baseline
from dsv4kv.ops.cuda.promises import broken_promises
from dsv4kv.ops.cuda.survey import Finding, survey
from dsv4kv.ops.kernels.catalogue import ARCHITECTURES, Example, catalogue
from dsv4kv.resources import shipped
from tests.cuda.nvrtc import VERSIONS, compiling_with
from tests.cuda.toolchain import needs_disassembler

_BASELINE = shipped("kernels").parent / "results" / "sass" / "baseline.json"
_HOPPER_REGISTERS = 65_536  # of a multiprocessor; so on sm_80, sm_100 and sm_120

ARCHITECTURES_OF = {VERSIONS[0]: ("sm_90a", "sm_100a"), VERSIONS[1]: ARCHITECTURES}
"""The older NVRTC compiles for the machines that it is likely to be met on."""

pytestmark = needs_disassembler


@pytest.fixture(scope="module", params=ARCHITECTURES_OF, ids="nvrtc-{}".format)
def version(request: pytest.FixtureRequest) -> str:
    """Of NVRTC."""
    return str(request.param)


@pytest.fixture(scope="module")
def findings(version: str) -> list[Finding]:
    """Every kernel of the catalogue, compiled by one NVRTC."""
    with compiling_with(version):
        return survey(catalogue(), ARCHITECTURES_OF[version])


def test_every_kernel_compiles_for_every_architecture(findings: list[Finding]) -> None:
    architectures = {finding.architecture for finding in findings}
    assert len(findings) == len(catalogue()) * len(architectures)


def test_no_kernel_uses_local_memory_and_accesses_are_as_wide_as_promised(
    findings: list[Finding],
) -> None:
    assert list(broken_promises(findings)) == []


def test_plans_pass_the_arguments_that_kernels_take(findings: list[Finding]) -> None:
    for finding in findings:
        arguments = finding.example.launch.arguments
        sizes = finding.report.parameter_bytes
        assert len(arguments) == len(sizes), finding.name
        for argument, size in zip(arguments, sizes, strict=True):
            assert size == 8 if isinstance(argument, torch.Tensor) else size in {4, 8}


def test_a_block_of_every_kernel_finds_its_registers(findings: list[Finding]) -> None:
    for finding in findings:
        threads = finding.example.launch.block
        assert threads * finding.report.registers <= _HOPPER_REGISTERS, finding.name


def test_names_tell_the_examples_apart() -> None:
    names = [name_of(example) for example in catalogue()]
    assert len(set(names)) == len(names)


def name_of(example: Example) -> str:
    return f"{example.launch.kernel} {example.subject}"


def test_machine_code_is_as_in_the_committed_baseline(
    findings: list[Finding], version: str
) -> None:
    baseline = load_baseline(_BASELINE)
    assert baseline is not None
    if not version.startswith(baseline.nvrtc):
        pytest.skip(f"the baseline is of NVRTC {baseline.nvrtc}")
    assert list(drift(findings, baseline)) == []
