"""What a visit is to find out: each question with its prediction and its bar.

Predictions are for an H200 and an H100. Those of kernels are computed from their launches, bytes
and products, by a model that is fitted to an H100's times; the others were made before any visit.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from dsv4kv.bench import predict
from dsv4kv.bench.predict import Card, Planned
from dsv4kv.config.load import load_config
from dsv4kv.ops.launches.pages import Way
from visit import workloads
from visit.place import Place, planned_place
from visit.workloads import Work

MODULES, COMPILE_S, CORES = 261, 0.46, 16
"""What the step ``compile`` builds, and NVRTC's time for one on a host like that."""

H200, H100 = "H200", "H100"
GPUS = (H200, H100)


@dataclass(frozen=True)
class Bar:
    """What is wanted of a figure.

    Attributes:
        sense: Whether it may be at most or must be at least the value.
        value: In the question's unit.
        gpus: Where that is wanted: a bar in microseconds is one card's.
    """

    sense: Literal["≤", "≥"]
    value: float
    gpus: tuple[str, ...] = GPUS

    def is_met(self, measured: float) -> bool:
        """Whether a figure is within the bar."""
        return measured <= self.value if self.sense == "≤" else measured >= self.value

    def __str__(self) -> str:
        only = "" if self.gpus == GPUS else f" ({', '.join(self.gpus)})"
        return f"{self.sense} {self.value:g}{only}"


@dataclass(frozen=True)
class Question:
    """One figure that a visit is to find.

    Attributes:
        name: Unique, of small letters.
        words: The question.
        unit: Of prediction, bar and figure; empty for a count.
        why: Where the prediction comes from.
        predicted: By card: computed of what is launched, or expected of a machine.
        bar: What is wanted; None where the figure only informs.
        work: What is timed, made on a place; None where a step finds the figure otherwise.
    """

    name: str
    words: str
    unit: str
    why: str
    predicted: Callable[[Card], float]
    bar: Bar | None = None
    work: Callable[[Place], Work] | None = None

    def on(self, gpu: str) -> float | None:
        """The prediction for a card by its name; None for one of which nothing is known."""
        return self.predicted(CARDS[gpu]) if gpu in CARDS else None


CARDS = {H200: predict.H200, H100: predict.H100}


def _on(h200: float, h100: float) -> Callable[[Card], float]:
    return lambda card: h200 if card.name == H200 else h100


def figure(unit: str, ns: float, work: Work, card: Card) -> float:
    """The time of a call in a question's unit; %: of the least that bytes and products allow."""
    if unit == "µs":
        return ns / 1e3
    if unit == "ns":
        return ns / work.entries
    return 100 * card.roofline_ns(work.bytes, work.flops) / ns


@functools.cache
def _planned(make: Callable[[Place], Work]) -> Work:
    """Work on no GPU, for what it would launch and move."""
    return make(planned_place())


def _timed(
    name: str,
    words: str,
    make: Callable[[Place], Work],
    *,
    unit: str = "µs",
    why: str = "",
    bar: Bar | None = None,
    share: Bar | None = None,
) -> tuple[Question, ...]:
    """The time of work; with a bar for it, also what share of the roofline that is."""

    def predicted(unit: str) -> Callable[[Card], float]:
        return lambda card: figure(unit, _planned(make).predicted_ns(card), _planned(make), card)

    why = why or "by the model"
    asked = [Question(name, words, unit, why, predicted(unit), bar, make)]
    if share:
        words = "What share of the roofline is that?"
        asked += [Question(f"{name}_share", words, "%", "the same", predicted("%"), share, make)]
    return tuple(asked)


def _count(name: str, words: str, why: str, expected: int = 0) -> Question:
    """A count that must be what is expected: none, or at least so many."""
    bar = Bar("≥", expected) if expected else Bar("≤", 0)
    return Question(name, words, "", why, _on(expected, expected), bar)


FACTS = (
    Question(
        "multiprocessors",
        "How many multiprocessors has the GPU?",
        "",
        "both cards of the SXM form have 132",
        _on(132, 132),
    ),
    Question("l2", "How large is its L2 cache?", "MB", "datasheets", _on(60, 50)),
)

COMPILE = (
    Question(
        "compile_all",
        "How long do all kernels of the visit's steps take to compile, on the host's cores?",
        "s",
        f"{MODULES} modules (244 when measured) of {COMPILE_S} s of NVRTC on {CORES} cores",
        _on(MODULES * COMPILE_S / CORES, MODULES * COMPILE_S / CORES),
        Bar("≤", 30),
    ),
    _count("not_kept", "How many of them does the cache not keep?", "each is written when built"),
    _count("first_launch", "How many bytes of a first gather differ?", "it copies bits"),
    _count("first_graph", "How many differ when a graph gathers them?", "the same kernel"),
)

TESTS = (
    _count("tests_failed", "How many tests of operations fail?", "all pass on the CPU twin"),
    _count("tests_passed", "How many of them pass?", "three for every scene of an operation", 100),
)


def _sizes(place: Place, requests: int, others: int) -> tuple[int, int]:
    return place.size(requests, min(requests, 2)), place.size(others, 32)


def _unrolled(unroll: int, place: Place) -> Work:
    return workloads.gather(place, place.size(131_072, 64), unroll=unroll)


def _chunk(kind: str, place: Place) -> Work:
    return workloads.chunk(place, kind, place.size(8192, 256))


def _flush(kind: str, split: int | None, place: Place) -> Work:
    return workloads.flush(place, kind, place.size(8192, 256), split)


def _objects(way: Way, place: Place) -> Work:
    return workloads.objects(place, way, place.size(256, 4))


SPEEDS = (
    Question(
        "copy_own",
        "How fast is the own copy of 1 GiB (read + write)?",
        "TB/s",
        "87–91 % of the datasheet",
        _on(4.2, 3.0),
    ),
    Question(
        "copy_torch",
        "How fast is torch's copy of it?",
        "TB/s",
        "a plain copy of 16-byte accesses, as the own one",
        _on(4.2, 3.0),
    ),
    Question("read", "How fast is reading?", "TB/s", "91 % of the datasheet", _on(4.35, 3.05)),
    Question("write", "How fast is writing?", "TB/s", "as a copy", _on(4.2, 3.0)),
    Question(
        "empty_node",
        "How long is a node of a graph whose kernel does nothing?",
        "µs",
        "launch latency between dependent nodes",
        _on(0.8, 0.8),
    ),
    *_timed(
        "gather_131072",
        "How long does one of 131,072 scattered entries take to gather?",
        lambda place: workloads.gather(place, place.size(131_072, 64)),
        unit="ns",
        bar=Bar("≤", 0.427, (H200,)),
        share=Bar("≥", 90),
    ),
    *_timed(
        "gather_ordered",
        "And in order instead of scattered?",
        lambda place: workloads.gather(place, place.size(131_072, 64), scattered=False),
        unit="ns",
        why="an entry is 4.5 lines of 128 B, either way whole",
    ),
    *(
        question
        for unroll in (1, 2, 4)
        for question in _timed(
            f"gather_u{unroll}",
            f"And with {unroll} in flight a warp?",
            functools.partial(_unrolled, unroll),
            unit="ns",
            why="even one is more than Little's law asks for",
        )
    ),
    *_timed(
        "gather_1m",
        "And of 1,048,576?",
        lambda place: workloads.gather(place, place.size(1 << 20, 96)),
        unit="ns",
        bar=Bar("≤", 0.417, (H200,)),
    ),
    *_timed(
        "topk_64x1024",
        "How long does the top-k gather of 64 × 1,024 take?",
        lambda place: workloads.topk(place, *_sizes(place, 64, 1024)),
        share=Bar("≥", 85),
    ),
    *_timed(
        "topk_8x1024",
        "Of 8 × 1,024?",
        lambda place: workloads.topk(place, *_sizes(place, 8, 1024)),
    ),
    *_timed(
        "insert_131072",
        "How long does the insert of 131,072 scattered entries take?",
        lambda place: workloads.insert(place, place.size(131_072, 64)),
        share=Bar("≥", 90),
    ),
)


def _attention(place: Place, requests: int, chosen: int, **how: Any) -> Work:
    sizes = _sizes(place, requests, chosen)
    return workloads.attend(place, *sizes, place.size(128, 2), **how)


_SCORES, _ATTEND = Bar("≥", 80), Bar("≥", 50)

READS = (
    *_timed(
        "scores_64x32k",
        "How long do the scores of 64 requests of 32K tokens take, FP8 keys of V4-Pro?",
        lambda place: workloads.scores(place, *_sizes(place, 64, 8192)),
        share=_SCORES,
    ),
    *_timed(
        "scores_64x128k",
        "And of 64 of 128K tokens?",
        lambda place: workloads.scores(place, *_sizes(place, 64, 32_768)),
        share=_SCORES,
    ),
    *_timed(
        "select_64x32768",
        "How long does the choice of the top k of 64 × 32,768 scores take?",
        lambda place: workloads.select(place, *_sizes(place, 64, 32_768)),
        bar=Bar("≤", 20, (H200,)),
    ),
    *_timed(
        "attend_csa",
        "How long does attention of V4-Pro to 64 × (128 + 1,024) entries take?",
        lambda place: _attention(place, 64, 1024),
        share=_ATTEND,
    ),
    *_timed(
        "attend_csa_groups",
        "And in the variant groups (wgmma)?",
        lambda place: _attention(place, 64, 1024, variant="groups"),
        share=_ATTEND,
    ),
    *_timed(
        "attend_csa_cluster",
        "And in the variant cluster (two blocks decode half of the entries each)?",
        lambda place: _attention(place, 64, 1024, variant="cluster"),
        share=_ATTEND,
    ),
    *_timed(
        "attend_hca",
        "And to 64 × (128 + 64) entries, all of an HCA layer?",
        lambda place: _attention(place, 64, 64, every=True),
        share=_ATTEND,
    ),
)

LONG = (
    *(
        question
        for kind in ("csa", "hca")
        for question in _timed(
            f"chunk_{kind}",
            f"How long does a chunk of 8,192 tokens take to compress, {kind.upper()}?",
            functools.partial(_chunk, kind),
        )
    ),
    *(
        question
        for way in ("take", "put")
        for question in _timed(
            f"objects_{way}",
            f"How long does it take to {way} 256 objects of a tier, pages of 61 layers?",
            functools.partial(_objects, way),
        )
    ),
    *_timed(
        "scores_1m",
        "How long do the scores of one request of 1M tokens take?",
        lambda place: workloads.scores(place, *_sizes(place, 1, 262_144)),
    ),
    *_timed(
        "select_1m",
        "And the choice of its top k?",
        lambda place: workloads.select(place, *_sizes(place, 1, 262_144)),
    ),
    *_timed(
        "attend_hca_1m",
        "And attention to its 8,192 HCA entries?",
        lambda place: _attention(place, 1, 8192, every=True),
    ),
)


def _amplification(operation: str, why: str, predicted: float) -> Question:
    words = f"How many bytes does {operation} move in DRAM for one that it must?"
    values = _on(predicted, predicted)
    return Question(f"amplification_{operation}", words, "×", why, values, Bar("≤", 1.10))


DRAM = (
    _amplification("gather", "8 B of scales cost an atom of 64 B: 56 B in 1,612", 1.03),
    _amplification("insert", "the same for the scales written, and their sector read", 1.05),
    _amplification("flush", "states are whole runs of 4 KiB", 1.01),
)


@functools.cache
def planned_step(card: Card, *settings: str) -> list[Planned]:
    """The step that ``bench gpu`` with settings captures, in the middle of its requests."""
    config = load_config("gpu", settings).config
    drawn = config.workload.synthetic
    tokens = int(drawn.input.mean + drawn.output.mean / 2) + 1
    return predict.plan_step(config, card, tokens)


def _step_ms(*settings: str) -> Callable[[Card], float]:
    return lambda card: sum(each.ns(card) for each in planned_step(card, *settings)) / 1e6


_LAUNCH_MS = 0.045  # of Python


def _eager_ms(*settings: str) -> Callable[[Card], float]:
    return lambda card: (
        _LAUNCH_MS * sum(len(each.launches) for each in planned_step(card, *settings))
    )


def _step_amplification(card: Card) -> float:
    """Scales of an entry that is not in a window cost an atom of 64 B, not 8 B."""
    step = planned_step(card)
    window, batch = 128, 64
    entries = sum(each.entries - batch * window for each in step if each.name == "attend")
    return 1 + 56 * entries / sum(each.bytes for each in step)


def _step(batch: int) -> tuple[Question, ...]:
    """What a bench of so many requests is asked."""
    of = f"V4-Pro, {batch} request{'s' if batch > 1 else ''} of 8,192 tokens"
    setting = f"workload.concurrency={batch}"
    return (
        _count(f"wrong_{batch}", f"How many outputs of {of}, are wrong?", "as on the twin"),
        Question(
            f"graph_{batch}",
            f"How long is one decode step: {of}, a graph?",
            "ms",
            "the sum of the launches of the step that is captured",
            _step_ms(setting),
        ),
        Question(
            f"host_{batch}",
            "How long is the host busy with it?",
            "µs",
            "one copy, few cells, one launch",
            _on(45, 45),
            Bar("≤", 100),
        ),
        Question(
            f"eager_{batch}",
            "How long is the host busy without a graph?",
            "ms",
            "as many launches of about 45 µs of Python",
            _eager_ms(setting),
        ),
    )


BENCH_64, BENCH_1, BENCH_8 = map(_step, (64, 1, 8))

SANITIZE = (
    _count("planted_write", "Does memcheck find a planted write outside?", "it must", 1),
    _count("planted_race", "Does racecheck find a planted race?", "it must", 1),
    _count("memcheck", "How many accesses outside?", "none on the twin under ASan"),
    _count("racecheck", "How many races?", "every order of fibers gives the same bits"),
    _count("synccheck", "How many barriers missed?", "the twin refuses split barriers"),
    _count("initcheck", "How many reads of what nothing wrote?", "outputs are poisoned in tests"),
)

BENCH_TESTS = (
    _count("bench_tests_failed", "How many tests of whole cases fail?", "all pass on the twin"),
    _count("bench_tests_passed", "How many of them pass?", "three settings, and each scene", 10),
)

_FLUSHED = "How long does the {} flush of 8,192 tokens take, cold, on random states?"

FLUSHES = tuple(
    question
    for kind, split, bar in (
        ("csa", None, Bar("≤", 20, (H200,))),
        ("csa", 2, None),
        ("hca", None, Bar("≤", 12, (H200,))),
        ("hca", 1, None),
        ("hca", 2, None),
        ("hca", 4, None),
    )
    for question in _timed(
        f"flush_{kind}" + (f"_split_{split}" if split else ""),
        f"And with {split} block{'s' if split > 1 else ''} an entry?"
        if split
        else _FLUSHED.format(kind.upper()),
        functools.partial(_flush, kind, split),
        bar=bar,
    )
)

VARIANTS = (
    _count(
        "variants_behind",
        "How many operations have a variant that is faster than the one in use?",
        "the one in use was chosen by reading machine code",
    ),
)

STEP_BYTES = (
    Question(
        "amplification_step",
        "How many bytes does a whole decode step move in DRAM for one that it must?",
        "×",
        "windows are whole pages; scales of other entries cost an atom of 64 B each",
        _step_amplification,
        Bar("≤", 1.10),
    ),
)

DOCTOR = (
    _count("doctor_wrong", "What does doctor --check-gpu find wrong?", "nothing on the twin"),
)

KERNELS = (
    _count(
        "kernels_check",
        "How many problems has the machine code of the compiler that is there?",
        "prepare_blocks had 8 B of stack with NVRTC 13.0",
    ),
)
