"""The calls of a visit and their steps: most knowledge first."""

from collections.abc import Sequence
from dataclasses import dataclass

from visit import questions as asked
from visit.questions import Question

MOST_S = 540
"""Planned length of a call: a machine may end one after ten minutes."""

TWIN_PATIENCE = 20
"""Limits are so many times as long where a host plays the GPU, and may be busy."""


@dataclass(frozen=True)
class Step:
    """Part of a call, run in a process of its own.

    Attributes:
        name: Unique in all calls.
        words: What it does.
        limit_s: When it is ended.
        program: ``module`` or ``module:argument``; the module's ``run`` gets a desk to answer at,
            and the argument.
        questions: What it answers.
    """

    name: str
    words: str
    limit_s: int
    program: str
    questions: Sequence[Question]


CALLS: dict[str, tuple[Step, ...]] = {
    "first": (
        Step("facts", "machine, driver, packages, tools", 20, "machine", asked.FACTS),
        Step("compile", "all kernels; one launch, one graph", 50, "first_light", asked.COMPILE),
        Step("tests", "tests/cuda/test_gpu.py", 110, "tests:tests", asked.TESTS),
        Step("speeds", "peaks, gathers, inserts, empty nodes", 90, "speeds:peaks", asked.SPEEDS),
        Step("reads", "scores, choice and attention", 50, "speeds", asked.READS),
        Step("dram", "ncu: DRAM bytes of three kernels", 70, "dram", asked.DRAM),
        Step("bench_64", "bench gpu, 64 requests", 150, "bench:64", asked.BENCH_64),
    ),
    "second": (
        Step("sanitize", "four sanitizers, two defects", 150, "sanitize", asked.SANITIZE),
        Step(
            "bench_tests",
            "tests/cuda/test_gpu_bench.py",
            90,
            "tests:bench_tests",
            asked.BENCH_TESTS,
        ),
        Step("long", "chunks, objects, 1M tokens", 35, "speeds", asked.LONG),
        Step("flushes", "flushes by blocks an entry", 30, "speeds", asked.FLUSHES),
        Step("bench_1", "bench gpu, 1 request", 65, "bench:1", asked.BENCH_1),
        Step("bench_8", "bench gpu, 8 requests", 65, "bench:8", asked.BENCH_8),
    ),
    "third": (
        Step("doctor", "dsv4kv doctor --check-gpu", 70, "doctor", asked.DOCTOR),
        Step("variants", "old against new, in turns", 180, "variants", asked.VARIANTS),
        Step("step_bytes", "profile gpu --ncu of one step", 200, "step_bytes", asked.STEP_BYTES),
        Step("kernels", "kernels --check", 90, "machine_code", asked.KERNELS),
    ),
}
"""All calls. A machine is kept for half a minute after one: the next can follow at once."""

STEPS = {step.name: step for steps in CALLS.values() for step in steps}
QUESTIONS = {question.name: question for step in STEPS.values() for question in step.questions}


def tell(call: str, steps: Sequence[Step]) -> str:
    """What a call will do, and how long each step may take."""
    most = sum(step.limit_s for step in steps)
    lines = [f"  {step.limit_s:>4} s  {step.name:<14} {step.words}" for step in steps]
    return "\n".join([f"{call}: at most {most / 60:.1f} minutes", *lines])
