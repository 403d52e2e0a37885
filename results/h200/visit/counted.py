"""What ncu looks at: ``python -m visit.counted`` launches each kernel twice between its marks."""

import sys
from collections.abc import Callable

from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.profile.run import CudaProfiler
from visit import workloads
from visit.place import Place, open_place
from visit.workloads import Work

WORKS: dict[str, tuple[str, Callable[[Place], Work]]] = {
    "gather": ("gather_entries", lambda place: workloads.gather(place, place.size(131_072, 64))),
    "insert": ("entry_insert", lambda place: workloads.insert(place, place.size(131_072, 64))),
    "flush": ("flush", lambda place: workloads.flush(place, "csa", place.size(8192, 256))),
}
"""Kernel and work by the question's name."""


def main() -> None:
    """Launch."""
    profiler = CudaProfiler()
    with open_place(small="--twin" in sys.argv) as place:
        for _, make in WORKS.values():
            calls = [prepare(launch) for call in make(place).calls for launch in call]
            calls[0]()
            profiler.start()
            for call in calls[:2]:
                call()
            profiler.stop()


if __name__ == "__main__":
    main()
