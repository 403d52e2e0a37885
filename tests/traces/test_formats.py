"""Each format's lines become the requests they describe."""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import TraceError
from dsv4kv.traces import FORMATS, detect_format, files, read_trace
from dsv4kv.traces.request import Request

MOONCAKE = """\
{"timestamp": 0, "input_length": 513, "output_length": 7, "hash_ids": [0, 1]}
{"timestamp": 1500, "input_length": 512, "output_length": 0, "hash_ids": [0], "session_id": "a"}
"""
AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:17:03.9799600,4808,10\r
2023-11-16 18:17:04.0319601,3180,8"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10 02:00:02.009930+02:00,76,15
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
"""
SHAREGPT = """\
{"prompt_len": 12, "output_len": 3}
{"prompt_tokens": 14, "completion_tokens": 5}
{"prompt_token_ids": [7, 8, 9], "output_token_ids": []}
{"arrival_s": 2.5, "input_length": 13, "output_length": 0}
"""
NATIVE = """\
{"arrival_s":0.5,"input_tokens":130,"output_tokens":9,"prefix_hashes":[4,7],"hash_block_tokens":128}
{"arrival_s":1,"input_tokens":20,"output_tokens":0}
"""
BAILIAN = """\
{"chat_id":1,"parent_chat_id":-1,"timestamp":0.5,"input_length":33,"output_length":2,"hash_ids":[1,2,3]}
"""
DELTA = """\
{"session_id":"a","timestamp":0,"input_length":513,"output_length":7,"hash_ids":[0,1]}
"""
WEKA = """\
{"block_size":4,"hash_id_scope":"local","requests":[{"t":0,"in":9,"out":1,"hash_ids":[1,2]}]}
"""
TIMED = """\
{"timestamp": 1.5, "input_length": 9, "output_length": 2}
"""
RESULTS = """\
{"completed": 2, "duration": 3, "input_lens": [9, 7], "output_lens": [2, 1], "start_times": [5, 6]}
"""
SAMPLES = {
    "bailian": BAILIAN, "mooncake-delta": DELTA, "weka": WEKA, "timed": TIMED,
    "mooncake": MOONCAKE, "azure": AZURE_2023, "burstgpt": BURSTGPT, "sharegpt": SHAREGPT,
    "dsv4kv": NATIVE, "results": RESULTS,
}  # fmt: skip

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_text(text: str) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(text.encode())
        return path

    return write_text


EXPECTED = {
    # ids of 512 tokens, times in milliseconds
    MOONCAKE: [Request(0.0, 513, 7, (0, 1), 512), Request(1.5, 512, 0, (0,), 512)],
    BAILIAN: [Request(0.5, 33, 2, (1, 2, 3), 16)],
    # all seven digits of a second
    AZURE_2023: [Request(0.0, 4808, 10), Request(0.0520001, 3180, 8)],
    # an offset from UTC counts
    AZURE_2024: [Request(0.0, 2162, 5), Request(0.99007, 2399, 6), Request(2.0, 76, 15)],
    BURSTGPT: [Request(0.0, 472, 18), Request(40.5, 1087, 230)],
    # lengths by several names, or lists of tokens
    SHAREGPT: [Request(0.0, 12, 3), Request(0.0, 14, 5), Request(0.0, 3, 0), Request(2.5, 13, 0)],
    NATIVE: [Request(0.5, 130, 9, (4, 7), 128), Request(1.0, 20, 0)],
}


@pytest.mark.parametrize("text", EXPECTED)
def test_lines_become_the_requests_that_they_describe(text: str, write: Write) -> None:
    assert list(read_trace(write(text))) == EXPECTED[text]


def test_azure_times_without_offset_are_utc_wherever_they_are_read(write: Write) -> None:
    # clocks in New York went back by an hour at 02:00
    rows = ("2023-11-05 01:59:59,1,1", "2023-11-05 02:00:00,1,1", "2023-11-05 02:00:01Z,1,1")
    path = write("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        assert [request.arrival_s for request in read_trace(path)] == [0.0, 1.0, 2.0]
    time.tzset()


@pytest.mark.parametrize("name", [name for name, entry in FORMATS.items() if entry.marks])
def test_a_format_with_marks_is_known_by_its_first_line(name: str, write: Write) -> None:
    assert detect_format(write(SAMPLES[name])) == name


@pytest.mark.parametrize("name", SAMPLES)
def test_gzip_a_byte_order_mark_and_blank_lines_change_nothing(name: str, write: Write) -> None:
    path = write(SAMPLES[name])
    plain = list(read_trace(path, name))
    spaced = "\ufeff\n" + SAMPLES[name].replace("\n", "\n\n \n") + "\n\n"
    for content in (gzip.compress(SAMPLES[name].encode()), spaced.encode()):
        path.write_bytes(content)
        assert list(read_trace(path, name)) == plain


@pytest.mark.parametrize("name", ["mooncake", "bailian", "dsv4kv", "sharegpt"])
@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_is_read_as_its_lines(name: str, indent: int | None, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in SAMPLES[name].splitlines()]
    array, lines = tmp_path / "array.json", tmp_path / "lines.jsonl"
    array.write_text(json.dumps(rows, indent=indent))
    lines.write_text(SAMPLES[name])
    assert detect_format(array) == detect_format(lines) == name
    assert list(read_trace(array)) == list(read_trace(lines))


@given(st.integers(1, 40), st.integers(1, 2), st.booleans())
def test_an_array_is_read_wherever_its_text_is_cut(piece: int, indent: int, broken: bool) -> None:
    rows = [{"prompt_len": 8 + n, "output_len": n, "é\\ud83d\n": [-1.5e3, None]} for n in range(5)]
    text = json.dumps(rows, indent=indent, ensure_ascii=indent == 1)
    path = Path(mkdtemp()) / "trace"
    text = text.replace("null", "nul", 9)[:-30] + text[-30:] if broken else text
    path.write_text(text, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        whole = _told(path)
        patch.setattr(files, "_PIECE_BYTES", piece)
        assert _told(path) == whole


def _told(path: Path) -> str:
    """What is read, or what is said of it."""
    try:
        return str(list(read_trace(path, "sharegpt")))
    except TraceError as error:
        return str(error)
