"""What a visit is to find out: each question with its prediction, made before, and its bar.

Predictions are for an H200 (datasheet 4.8 TB/s, a copy at 87.5 % of it) and an H100 (3.35 TB/s, a
copy at 90 %). What memory limits takes 1.4 times as long on an H100; launches take the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
        predicted: By GPU.
        bar: What is wanted; None where the figure only informs.
    """

    name: str
    words: str
    unit: str
    why: str
    predicted: Mapping[str, float]
    bar: Bar | None = None


def _on(h200: float, h100: float) -> dict[str, float]:
    return {H200: h200, H100: h100}


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
        "248 modules of 0.7 s of NVRTC on 16 cores",
        _on(11, 11),
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
    Question(
        "gather_131072",
        "How long does one of 131,072 scattered entries take to gather?",
        "ns",
        "1,612 B at 90 % of the copy: 8 wide loads a lane are under way together; 64-byte atoms "
        "and the ramp from index to page are left",
        _on(0.428, 0.60),
        Bar("≤", 0.417, (H200,)),
    ),
    Question(
        "gather_131072_share",
        "What share of the faster copy is that?",
        "%",
        "the same",
        _on(90, 90),
        Bar("≥", 90),
    ),
    Question(
        "gather_ordered",
        "And in order instead of scattered?",
        "ns",
        "an entry is 4.5 lines of 128 B, either way whole",
        _on(0.42, 0.59),
    ),
    Question(
        "gather_u1",
        "And with one entry in flight a warp?",
        "ns",
        "half the bytes in flight that two have",
        _on(0.46, 0.64),
    ),
    Question(
        "gather_u2",
        "And with two?",
        "ns",
        "four wide loads a lane are five times what Little's law asks for",
        _on(0.428, 0.60),
    ),
    Question(
        "gather_u4",
        "And with four?",
        "ns",
        "more in flight, fewer warps: 60 registers instead of 43",
        _on(0.435, 0.61),
    ),
    Question(
        "gather_1m",
        "And of 1,048,576?",
        "ns",
        "94 % of the copy: start and end count less",
        _on(0.41, 0.57),
        Bar("≤", 0.417, (H200,)),
    ),
    Question(
        "topk_64x1024",
        "How long does the top-k gather of 64 × 1,024 take?",
        "µs",
        "105.6 MB, and 3 µs from index to table to page",
        _on(29.5, 40.5),
    ),
    Question(
        "topk_64x1024_share",
        "What share of the faster copy is that?",
        "%",
        "the same",
        _on(85, 87),
        Bar("≥", 85),
    ),
    Question("topk_64x512", "Of 64 × 512?", "µs", "52.8 MB, the same ramp", _on(16, 21.5)),
    Question("topk_8x1024", "Of 8 × 1,024?", "µs", "13.2 MB, mostly ramp", _on(6, 7.3)),
    Question(
        "insert_131072",
        "How long does the insert of 131,072 scattered entries take?",
        "µs",
        "212 MB at 92 %: as many blocks as are resident, two entries of a warp under way",
        _on(55, 77),
    ),
    Question(
        "insert_131072_share",
        "What share of the faster copy is that?",
        "%",
        "the same; the variant single has 1.6 waves of blocks and about 80 %",
        _on(92, 92),
        Bar("≥", 90),
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


def _step(batch: int, why: str, predicted: Mapping[str, float]) -> tuple[Question, ...]:
    """What a bench of so many requests is asked."""
    of = f"V4-Pro, {batch} request{'s' if batch > 1 else ''} of 8,192 tokens"
    return (
        _count(f"wrong_{batch}", f"How many outputs of {of}, are wrong?", "as on the twin"),
        Question(
            f"graph_{batch}",
            f"How long is one decode step: {of}, a graph?",
            "ms",
            why,
            predicted,
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
            "218 launches of about 45 µs of Python",
            _on(10, 10),
        ),
    )


BENCH_64 = _step(64, "5.54 GB at the copy, and 216 gaps of 0.4 µs", _on(1.4, 1.95))
BENCH_1 = _step(1, "87 MB, but 216 kernels of the shortest duration", _on(0.55, 0.55))
BENCH_8 = _step(8, "0.7 GB; most of the 216 kernels last what their start takes", _on(0.65, 0.7))

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

DEVICE_TABLES = (
    Question(
        "device_tables",
        "How long is a decode step of 64 requests whose block tables kernels keep?",
        "ms",
        "two launches more in a graph of 216",
        _on(1.4, 1.95),
    ),
)

FLUSHES = (
    Question(
        "flush_csa",
        "How long does the CSA flush of 8,192 tokens take, cold, on random states?",
        "µs",
        "2,048 entries of 33 KiB at the copy, 16 loads under way together, and a ramp of 2 µs",
        _on(18.5, 25),
        Bar("≤", 20, (H200,)),
    ),
    Question(
        "flush_hca",
        "And the HCA flush?",
        "µs",
        "64 entries of 512 KiB on 512 blocks, loads eight by eight: four latencies in a row, and "
        "a second kernel",
        _on(12, 15.5),
        Bar("≤", 10, (H200,)),
    ),
    *(
        Question(
            f"flush_{kind}_split_{split}",
            f"And with {split} block{'s' if split > 1 else ''} an entry?",
            "µs",
            why,
            _on(*predicted),
        )
        for kind, split, why, predicted in (
            ("csa", 2, "more blocks than places anyway, and a second kernel", (21, 28)),
            ("hca", 1, "64 blocks for 132 multiprocessors", (32, 35)),
            ("hca", 2, "128 blocks", (18, 21)),
            ("hca", 4, "256 blocks", (14, 18)),
        )
    ),
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
        "windows and states of neighbours are still in L2; scales cost an atom each",
        _on(1.03, 1.03),
        Bar("≤", 1.10),
    ),
)

KERNELS = (
    _count(
        "kernels_check",
        "How many problems has the machine code of the compiler that is there?",
        "prepare_blocks had 8 B of stack with NVRTC 13.0",
    ),
)
