"""What sanitizers look at: ``python -m visit.scenes`` runs every kernel, block tables' too.

Each operation once as a cache would call it, then every kernel asked for what there is not.
"""

import itertools
import sys
from dataclasses import replace

import torch
from torch import Tensor

from dsv4kv.ops import cuda
from dsv4kv.ops.cuda.launch import run
from dsv4kv.ops.launches import Launch
from dsv4kv.ops.scenes import make_call
from tests.kernels import hostile
from tests.ops.operations import SCENES, SEED
from visit.place import open_place
from visit.sanitize import END

_SMALL = 2


class Mover:
    """Moves launches to a device; tensors that share memory still do."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}

    def move(self, launch: Launch) -> Launch:
        """The same launch there."""
        arguments = (self._tensor(a) if isinstance(a, Tensor) else a for a in launch.arguments)
        return replace(launch, arguments=tuple(arguments))

    def _tensor(self, tensor: Tensor) -> Tensor:
        start = tensor.untyped_storage().data_ptr()
        if start not in self._moved:  # the original is kept, lest another takes its address
            whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            self._moved[start] = whole, whole.to(self._device, copy=True)
        storage = self._moved[start][1].untyped_storage()
        view = torch.empty(0, dtype=tensor.dtype, device=self._device)
        return view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def main() -> None:
    """Run them all."""
    with open_place(small="--twin" in sys.argv) as place:
        most = _SMALL if place.small else None
        for scene in itertools.islice(SCENES.values(), most):
            call = make_call(scene.make, place.device.device, SEED)
            getattr(cuda, scene.operation)(**call.arguments)
        mover = Mover(place.device.device)
        for launch in itertools.islice(hostile.launches(), most):
            run(mover.move(launch))
        if not place.small:
            torch.cuda.synchronize()
    print(END)


if __name__ == "__main__":
    main()
