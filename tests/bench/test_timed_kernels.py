"""Inside what is timed on a GPU there is nothing but the operation's own kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from dsv4kv.bench.device import CallTimer, Timing, measure_peaks
from dsv4kv.bench.figures import list_figures, measure_figures
from tests.bench.serve.gpu_serving import build
from tests.examples import FULL
from tests.gpu_twin import TwinGpu, twin_device, twin_gpu

KERNELS: dict[tuple[str, str | None], int] = {("flush", "hca"): 2}
"""Kernels of an operation on layers of a type; of all others, one."""

LAUNCHES_NOTHING = {"empty", "slice", "select", "view", "detach", "alias"}
"""Torch's operators that only look at memory or take some; any other is a kernel on a GPU."""

Named = tuple[str, str | None, str | None]


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the names of torch's operators that compute something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name not in LAUNCHES_NOTHING:
            self.names.append(name)
        return func(*args, **kwargs or {})


@dataclass
class CountingTimer(CallTimer):
    """Counts what every call launches: (own kernels, torch's operators).

    A call runs twice, as a captured one does, and the second is counted.
    """

    gpu: TwinGpu
    launched: dict[Named, set[tuple[int, tuple[str, ...]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(twin_device(self.gpu))

    def measure(
        self,
        calls: Sequence[Callable[[], object]],
        name: str,
        layer_type: str | None = None,
        temperature: str | None = None,
        most_ns: int | None = None,
    ) -> Timing:
        for call in calls if FULL else calls[:2]:  # cold ones differ in their pages alone
            call()
            before = len(self.gpu.launched)
            with Operators() as operators:
                call()
            counts = len(self.gpu.launched) - before, tuple(operators.names)
            self.launched.setdefault((name, layer_type, temperature), set()).add(counts)
        return Timing([1] * len(calls), 0, 0, converged=True)


@pytest.fixture(scope="module")
def launched() -> dict[Named, Any]:
    """What every timed call of ``bench gpu`` launches."""
    with twin_gpu() as gpu:
        executor = build(gpu, "workload.decode=eager").drive.executor
        timer = CountingTimer(gpu)
        timer.time_floor()
        measure_peaks(timer.device, 1 << 20, timer)
        measure_figures(executor, timer, list_figures(executor, requests=2, seed=0))
    return timer.launched


def test_every_operation_launches_its_own_kernels_and_nothing_else(
    launched: dict[Named, Any],
) -> None:
    operations = {named: counts for named, counts in launched.items() if named[1] is not None}
    assert {layers for _, layers, _ in operations} == {"swa", "csa", "hca"}
    expected = {
        (name, layers, temperature): {(KERNELS.get((name, layers), 1), ())}
        for name, layers, temperature in operations
    }
    assert operations == expected


def test_yardsticks_and_floors_are_one_kernel_and_torchs_copy_is_torchs(
    launched: dict[Named, Any],
) -> None:
    found = {name: counts for (name, layers, _), counts in launched.items() if layers is None}
    own = {name: {(1, ())} for name in ("empty kernel", "copy", "read", "write")}
    assert found == own | {"torch_copy": {(0, ("copy_",))}}
