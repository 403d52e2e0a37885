"""Checks operations that come from elsewhere against the reference, before they are timed."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4kv.errors import PeerUnavailable
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops import reference
from dsv4kv.ops.check.compare import find_difference
from dsv4kv.ops.check.maker import Call, make_call
from dsv4kv.ops.check.scenes import Scene, scenes_of
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.registry import ResolvedBackend
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.writes import PartWrite

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Disagreement:
    """An operation that must not be timed.

    Attributes:
        backend: Its backend, as it was asked for.
        operation: Its name in the contract.
        subject: Pages or state it was called with.
        problem: What is wrong, a sentence that begins small.
    """

    backend: str
    operation: str
    subject: str
    problem: str

    def __str__(self) -> str:
        return f"{self.operation} of {self.backend} on {self.subject}: {self.problem}"


def check_backend(
    resolved: ResolvedBackend, plan: CachePlan, device: torch.device, seed: int = 0
) -> list[Disagreement]:
    """Call every foreign operation with what a cache may pass it, and compare with the reference.

    Args:
        resolved: The backend.
        plan: The cache: its page layouts and compressors are the ones that are checked.
        device: Where the operations run.
        seed: Of the random arguments.

    Returns:
        The first disagreement of each operation on each kind of pages; empty where all agree.

    Raises:
        PeerUnavailable: No operation takes pages of this cache's formats.
    """
    scenes = [
        scene
        for scene in scenes_of(plan, seed)
        if resolved.serves(scene.operation, scene.format_name)
    ]
    if resolved.foreign and not scenes:
        raise PeerUnavailable(_nothing_served(resolved, plan))
    problems = [(scene, _run(resolved, scene, device, seed)) for scene in scenes]
    return [
        Disagreement(resolved.name, scene.operation, scene.subject, problem)
        for scene, problem in problems
        if problem
    ]


def _run(resolved: ResolvedBackend, scene: Scene, device: torch.device, seed: int) -> str | None:
    found = make_call(scene.make, device, seed)
    try:
        getattr(resolved.backend, scene.operation)(*found.arguments)
        found = _to_cpu(found)  # waits: what went wrong on a GPU shows here
    except Exception as error:
        first_line = str(error).partition("\n")[0] or "no message"
        return f"it raised {type(error).__name__}: {first_line}"
    expected, before = (make_call(scene.make, _CPU, seed) for _ in range(2))
    getattr(reference, scene.operation)(*expected.arguments)
    return find_difference(scene.operation, found, expected, before, leeway=scene.leeway)


def _to_cpu(call: Call) -> Call:
    return Call([_moved(each) for each in call.arguments], [each.cpu() for each in call.guarded])


def _moved(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(PartWrite(*map(_moved, part.fields())) for part in argument)
    if isinstance(argument, PageStore):
        return PageStore(argument.layout, argument.pages.cpu())
    return argument.to(_CPU) if isinstance(argument, Tensor | Compressor) else argument


def _nothing_served(resolved: ResolvedBackend, plan: CachePlan) -> str:
    layouts = [page for s in plan.schemas for page in (s.main, s.window, s.indexer) if page]
    held = dict.fromkeys(layout.format.name for layout in layouts)
    takes = f"takes {', '.join(resolved.formats)} pages only" if resolved.formats else "is left"
    return (
        f"backend {resolved.name} has nothing to do here: it brings {', '.join(resolved.foreign)}"
        f", {takes}, and this cache holds {', '.join(held)}."
    )
