"""Loads the kernels of a configuration's cache as a new process does; prints the nanoseconds.

NVRTC is found and loaded within them, Python and torch before.
"""

import sys
import time

from dsv4kv.bench.build import plan_from
from dsv4kv.config.load import load_config
from dsv4kv.ops.cuda.compile import load_cubins
from dsv4kv.ops.cuda.foresight import foresee


def main(name: str, architecture: str) -> None:
    plan = plan_from(load_config(name, []).config)
    start_ns = time.perf_counter_ns()
    load_cubins(foresee(plan, device_prepare=True), architecture)
    print(time.perf_counter_ns() - start_ns)


if __name__ == "__main__":
    main(*sys.argv[1:])
