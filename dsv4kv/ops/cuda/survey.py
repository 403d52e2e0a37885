"""The catalogue's kernels, compiled for several architectures and looked at."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dsv4kv.ops.cuda.compile import check_architecture
from dsv4kv.ops.cuda.cubin_cache import load_cubins
from dsv4kv.ops.cuda.inspection import KernelReport, check_tools, inspect_cubins
from dsv4kv.ops.kernels.catalogue import Example
from dsv4kv.ops.kernels.launch import KernelModule


@dataclass(frozen=True)
class Finding:
    """What an example's kernel became for one architecture."""

    example: Example
    architecture: str
    report: KernelReport

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.example.launch.kernel

    @property
    def name(self) -> str:
        """Kernel and subject: ``gather_topk fp8_ds_mla × 32``, unique in the catalogue."""
        return f"{self.kernel} {self.example.subject}"


def survey(
    examples: Sequence[Example],
    architectures: Sequence[str],
    on_done: Callable[[str], None] = lambda _: None,
) -> list[Finding]:
    """Compile and inspect: for each example those of the architectures that it is for, in order.

    Looks for its tools first, as compiling takes longest; ``on_done`` is told each architecture
    that is finished.

    Raises:
        CudaUnavailable: A package or tool is missing; says which.
        DeviceError: An architecture that cannot be, or a kernel that does not compile.
    """
    check_tools()
    for architecture in architectures:
        check_architecture(architecture)

    def report(architecture: str) -> Reports:
        found = _reports(examples, architecture)
        on_done(architecture)
        return found

    with ThreadPoolExecutor() as pool:  # one disassembles while another compiles
        reports = dict(zip(architectures, pool.map(report, architectures), strict=True))
    return [
        Finding(example, architecture, reports[architecture][_kernel_of(example)])
        for example in examples
        for architecture in architectures
        if example.runs_on(architecture)
    ]


Reports = dict[tuple[KernelModule, str], KernelReport]
"""By module and kernel."""


def _kernel_of(example: Example) -> tuple[KernelModule, str]:
    return example.launch.module, example.launch.kernel


def _reports(examples: Sequence[Example], architecture: str) -> Reports:
    wanted = [example for example in examples if example.runs_on(architecture)]
    modules = list(dict.fromkeys(example.launch.module for example in wanted))
    cubins = load_cubins(modules, architecture)
    inspected = zip(modules, inspect_cubins(architecture, cubins), strict=True)
    return {(module, report.kernel): report for module, reports in inspected for report in reports}
