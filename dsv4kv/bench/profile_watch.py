"""Marks the decode steps of a serving loop for a profiler, and counts their useful bytes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from torch import Tensor

from dsv4kv.measure.profilers.attached import Attached
from dsv4kv.measure.profilers.ranges import INPUTS, STEP
from dsv4kv.measure.recorder import Recorder
from dsv4kv.workload.decode_graphs import DecodeGraphs
from dsv4kv.workload.executor import StepExecutor, StepTokens
from dsv4kv.workload.inputs import StepInputs
from dsv4kv.workload.operations import Call, decode_operations
from dsv4kv.workload.work import StepWork

_REPLAY, _LAUNCH = "replay", "launch"


class Enough(Exception):
    """All steps that were to be profiled are done."""


@dataclass
class Watch:
    """Decides when the profiler looks, and keeps what it looked at.

    Attributes:
        profiler: Looks.
        steps: Decode steps to look at.
        requests: Begin with the first step of so many requests.
        warmup: Decode steps of so many requests to let pass before.
        step_requests: Requests of every step looked at.
        useful_bytes: Bytes that operations had to move, by name.
        active: Whether a step is being looked at.
        started: Whether the profiler is on.
    """

    profiler: Attached
    steps: int
    requests: int
    warmup: int
    step_requests: list[int] = field(default_factory=list)
    useful_bytes: Counter[str] = field(default_factory=Counter)
    active: bool = False
    started: bool = False
    _full: int = 0

    def mark(self, name: str) -> AbstractContextManager[object]:
        """A range inside a profiled step; nothing elsewhere."""
        return self.profiler.mark(name) if self.active else nullcontext()

    @contextmanager
    def look_at(self, step: StepTokens) -> Iterator[None]:
        """Profile a decode step, if it is time; ends the loop after the last."""
        requests = step.batch.num_requests
        self._full += requests == self.requests
        if self._full <= self.warmup:
            yield
            return
        if not self.started:
            self.started = True
            self.profiler.start()
            yield  # not looked at: a profiler takes its time to begin
            return
        self.active = True
        try:
            with self.profiler.mark(STEP):
                yield
        finally:
            self.active = False
        self.step_requests.append(requests)
        if len(self.step_requests) == self.steps:
            raise Enough


class MarkingRecorder(Recorder):
    """Marks every operation that it times as a range, and adds up their bytes."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    @contextmanager
    def timed(self, name: str, layer_type: str, entries: int, moved_bytes: int) -> Iterator[None]:
        """See ``Recorder``."""
        title = f"{name} {layer_type}"
        if self._watch.active:
            self._watch.useful_bytes[title] += moved_bytes if entries else 0
        with self._watch.mark(title), super().timed(name, layer_type, entries, moved_bytes):
            yield

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """See ``Recorder``."""
        with self._watch.mark(INPUTS), super().excluded():
            yield


@dataclass(kw_only=True)
class ProfiledExecutor(StepExecutor):
    """An executor whose decode steps are looked at.

    Attributes:
        watch: Looks.
    """

    watch: Watch

    def decode(self, step: StepTokens) -> None:
        """See ``StepExecutor``."""
        with self.watch.look_at(step):
            super().decode(step)
            if self.watch.active and self.gpu is not None:
                self._count_bytes(step)

    def _run(self, step: StepTokens, inputs: StepInputs, chosen: Tensor, *, chunk: bool) -> None:
        with self.watch.mark(_LAUNCH):
            super()._run(step, inputs, chosen, chunk=chunk)

    def _replay(
        self, graphs: DecodeGraphs, step: StepTokens, inputs: StepInputs, chosen: Tensor
    ) -> None:
        with self.watch.mark(_REPLAY):
            super()._replay(graphs, step, inputs, chosen)

    def _count_bytes(self, step: StepTokens) -> None:
        """Bytes by kernel: those of indexer keys and of compressed KV have one name on a GPU."""
        after, positions = step.batch.tokens_after.numpy(), step.batch.positions.numpy()
        fused = self.gpu is not None and self.gpu.fused
        work = StepWork(after, positions, self.index_topk, self.window_tokens)
        for layer in self.layers:
            for operation, indexer in decode_operations(layer, fused=fused):
                _, moved = work.of(Call(operation, indexer, _nothing), layer)
                self.watch.useful_bytes[operation] += moved


def _nothing() -> None:
    """Stands for a call whose work is only counted."""
