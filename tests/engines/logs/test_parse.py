"""Reading start-up logs."""

import gzip
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.engines.logs import parse_log, read_lines, read_log
from dsv4kv.errors import ConfigError
from tests.engines.logs.startup import (
    BLOCKS_GIVEN,
    REFUSAL,
    SGLANG,
    VLLM_0_26,
    VLLM_0_33,
    of_ranks,
    parsed,
    prefixed,
)

NOISE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=60).filter(
    lambda text: "cache" not in text and "=" not in text and ":" not in text
)


SMALLER = VLLM_0_33[-1].replace("63,859", "50,000")


@pytest.mark.parametrize(
    ("lines", "field", "expected"), [
        # of a replica's workers the least memory
        ([("Worker_DP0_TP0", "Available KV cache memory: 9.00 GiB"),
          ("Worker_DP0_TP1", "Available KV cache memory: 8.00 GiB"),
          ("Worker_DP1_TP0", "Available KV cache memory: 7.00 GiB"),
          ("EngineCore_DP0", VLLM_0_33[-1])], "available_gib", [("EngineCore_DP0", 8.0)]),
        # ranks that differ, the smallest first
        ([("EngineCore_DP0", VLLM_0_33[-1]), ("EngineCore_DP1", SMALLER),
          ("EngineCore_DP1", SMALLER)],
         "tokens", [("EngineCore_DP1", 50_000), ("EngineCore_DP0", 63_859)]),
        # two lines of each, interleaved
        ([("A", VLLM_0_26[-2]), ("B", VLLM_0_26[-2].replace("1,009,661", "800,000")),
          ("A", VLLM_0_26[-1]), ("B", VLLM_0_26[-1].replace("1.11", "0.88"))],
         "concurrency", [("B", 0.88), ("A", 1.11)]),
    ]
)  # fmt: skip
def test_a_log_of_several_ranks_has_a_reading_of_each(
    lines: list[tuple[str, str]], field: str, expected: list[tuple[str, float]]
) -> None:
    readings = of_ranks(lines).readings
    assert [(each.rank, each.number(field)) for each in readings] == expected


@given(
    st.integers(0, 2**32), st.lists(NOISE, max_size=6), st.sampled_from(["EngineCore", "W_TP1"])
)
def test_prefixes_colours_and_noise_change_nothing(seed: int, noise: list[str], rank: str) -> None:
    source = random.Random(seed)
    for lines in (VLLM_0_26, VLLM_0_33, REFUSAL, SGLANG):
        shown = prefixed(lines, seed, rank)
        for text in noise:
            shown.insert(source.randrange(len(shown) + 1), text)
        plain, dressed = parsed(lines), parsed([plain_text(line) for line in shown])
        assert [r.fields for r in dressed.readings] == [r.fields for r in plain.readings]
        assert {reading.rank for reading in dressed.readings} == {rank}
        assert dressed.arguments == plain.arguments
        assert dressed.version == plain.version


def test_of_a_line_without_end_no_more_than_its_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * (3 << 20) + b"\nnext\n")
    assert [len(line) for line in read_lines(path)] == [1 << 20, 4]


@pytest.mark.parametrize("packed", [False, True])
def test_a_log_of_more_than_any_start_is_refused(tmp_path: Path, *, packed: bool) -> None:
    path = tmp_path / "a.log"
    with gzip.open(path, "wb", 1) if packed else path.open("wb") as file:
        for _ in range(257):
            file.write(bytes(1 << 20))
    told = (
        "cannot be read (it unpacks to over 200 times its size)"
        if packed
        else "is larger than 256 MiB"
    )
    with pytest.raises(ConfigError, match=re.escape(f"a.log: {told}")):
        read_log(path)


LONG = {
    "arguments": "tp_size=1," * 50_000,
    "numbers": "kv cache max seq len 1" + ",111" * 60_000,
    "names of versions": "vllm/" * 60_000,
    "ranks": "[" + "ATTN_a1" * 27 + " GPU KV cache size: 63,859 tokens",
}


@pytest.mark.parametrize("what", LONG)
def test_a_long_line_is_searched_once(what: str) -> None:
    program = f"from dsv4kv.engines.logs import scan_log\nscan_log([{LONG[what]!r}], '')"
    subprocess.run([sys.executable, "-"], input=program, text=True, check=True, timeout=300)


def test_a_log_with_more_sizes_than_any_start_is_refused() -> None:
    lines = ["GPU KV cache size: 1,000 tokens", "Maximum concurrency for 1,000 tokens: 1.00x"]
    assert len(parse_log(lines * 2048, "log").readings) == 1
    with pytest.raises(ConfigError, match="log: more than 4,096 lines say a cache's size: give"):
        parse_log([*lines * 2048, "GPU KV cache size: 999 tokens"], "log")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.log: cannot be read \(No such file"):
        read_log(tmp_path / "gone.log")
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"x" * 10_000)[:-20])
    with pytest.raises(ConfigError, match=r"broken.gz: cannot be read"):
        read_log(broken)


def plain_text(line: str) -> str:
    """Without colours, as ``read_lines`` gives it."""
    return re.sub(r"\x1b\[[\d;]*m", "", line)


def test_memory_beside_the_cache_is_read_as_both_engines_print_it() -> None:
    """The tightest rank's. vLLM 0.33.0: ``gpu/model_runner.py``; SGLang 0.5.23."""
    vllm = [
        "(Worker_TP0 pid=1) INFO Model loading took 72.41 GiB memory and 61.200000 seconds",
        "(Worker_TP1 pid=2) INFO Model loading took 72.43 GiB memory and 61.300000 seconds",
        "INFO Graph capturing finished in 21 secs, took 2.91 GiB",
    ]
    assert parsed([*VLLM_0_33, *vllm]).memory == {"weights": 72.43, "CUDA graphs": 2.91}
    sglang = [
        "Load weight end. elapsed=41.20 s, avail mem=100.10 GB, mem usage=37.60 GB.",
        "Memory pool end. avail mem=21.41 GB",
    ]
    expected = {"weights": 37.60, "free next to the cache": 21.41}
    assert parsed([*SGLANG, *sglang]).memory == expected


@pytest.mark.parametrize(
    ("before", "last", "tokens"),
    [
        (VLLM_0_26, BLOCKS_GIVEN, 24_058),
        (REFUSAL, VLLM_0_33, 63_859),
    ],
)
def test_of_several_starts_the_last_is_read_with_its_own_arguments(
    before: Sequence[str], last: Sequence[str], tokens: int
) -> None:
    """A container or pod that began anew; what follows without a size is no start."""
    crashed = "non-default args: {'max_model_len': 7}"
    log, alone = parsed([*before, *before, *last, crashed]), parsed(last)
    repeats = 2 if before is not REFUSAL else 1  # a refusal begins with no line of its own
    assert log.readings == alone.readings
    assert log.readings[0].printed_tokens == tokens
    assert (log.restarts, log.arguments, log.version) == (repeats, alone.arguments, alone.version)


@pytest.mark.parametrize("before", [[], VLLM_0_26])
def test_nodes_one_after_the_other_are_ranks_of_one_server(before: Sequence[str]) -> None:
    """And none of a start before, which had the same ranks."""
    ranks = ("EngineCore_DP0", "EngineCore_DP1")
    log = of_ranks([(r, line) for part in (before, BLOCKS_GIVEN) for r in ranks for line in part])
    assert [(each.rank, each.printed_tokens) for each in log.readings] == [
        (rank, 24_058) for rank in ranks
    ]
    assert bool(log.restarts) == bool(before)


@pytest.mark.parametrize("number", ["9" * 19, "9" * 60])
def test_numbers_that_no_server_prints_are_none(number: str) -> None:
    good = "GPU KV cache size: 63,859 tokens\nMaximum concurrency for 33,792 tokens: 1.89x\n"
    odd = f"GPU KV cache size: {number} tokens\nMaximum concurrency for {number} tokens: 1.5x\n"
    (reading,) = parse_log((odd + good).splitlines(), "log").readings
    assert reading.whole("tokens") == 63_859
    assert reading.whole("context") == 33_792
