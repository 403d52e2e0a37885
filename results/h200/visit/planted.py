"""What a sanitizer must find: ``python -m visit.planted KERNEL`` launches a defect on purpose."""

import sys

import torch

from dsv4kv.ops.cuda.launch import run
from tests.kernels.defects import THREADS, defect
from visit.place import open_place


def main() -> None:
    """Launch the defect on 1,024 bytes."""
    with open_place(small=False) as place:
        source, target = (
            torch.full((16 * THREADS,), 77, dtype=torch.uint8, device=place.device.device)
            for _ in range(2)
        )
        run(defect(sys.argv[1], source, target))
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
