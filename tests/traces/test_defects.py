"""Whatever is wrong with a trace is a sentence that names file, line and what is expected."""

import gzip
import json
import os
import random
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import TraceError
from dsv4kv.traces import FORMATS, files, read_trace

GOOD = {"arrival_s": 0.0, "input_tokens": 8, "output_tokens": 1}
MOONCAKE = {"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [1]}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Request tokens,Response tokens\n"


def lines(*records: Mapping[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def own(**changes: object) -> str:
    return lines(GOOD | changes)


def mooncake(**changes: object) -> str:
    return lines(MOONCAKE, MOONCAKE | changes)


def blocks(size: int, **ids: object) -> str:
    return own(hash_block_tokens=size, **ids)


ONE = '{"prompt_len": 1, "output_len": 1}'
BAD_TIME = "2023-11-16 18:1"
ODD_IDS = "has 9223372036854775807, expected numbers of 64 bits, all unsigned or all signed, other"
# text, line, what the sentence says
DEFECTS = [
    ("", 1, "the file is empty"),
    (AZURE, 2, "the trace has no requests"),
    ("[\n]\n", 1, "the trace has no requests"),
    ("hello, world\n", 1, "no known format, which are bailian, "),
    ('{"timestamp": 0, "inp', 1, "may be truncated"),
    (lines(GOOD) + "{oops}\n" + lines(GOOD), 2, "broken JSON (Expecting property"),
    (lines(GOOD) + "[1]\n", 2, "a JSON list where an object is expected"),
    (lines(GOOD) + "[" * 100_000, 2, "nested too deeply"),
    (lines(GOOD) + '{"arrival_s": ' + "9" * 5000 + "}\n", 2, "unreadable JSON"),
    (lines({"input_tokens": 8, "output_tokens": 1}), 1, "arrival_s is missing"),
    (own(output_tokens=True), 1, "output_tokens is True"),
    (own(input_tokens=0), 1, "from 1 to 2,147,483,647"),
    (own(input_tokens=2**31), 1, "input_tokens is 2147483648"),
    (mooncake(timestamp=1e300), 2, "timestamp is 1e+300"),
    (blocks(8, prefix_hashes=[1, 2]), 1, "has 2 ids, expected 1: one per 8 of 8 tokens"),
    (blocks(0), 1, "hash_block_tokens is 0, expected a whole number of tokens from 1"),
    (
        blocks(8, prefix_hashes=[1]) + blocks(16, prefix_hashes=[1]), 2,
        "hash_block_tokens is 16, earlier lines have 8",
    ),
    (blocks(8, prefix_hashes=["a"]), 1, "prefix_hashes is ['a'], expected a list of whole"),
    (mooncake(input_length=2000), 2, "has 1 ids, expected 4: one per 512 of 2,000 tokens"),
    (lines({"prompt_len": 3}), 1, "one of output_len, output_length, completion_tokens, output"),
    ('[\n{"prompt_len": 1,\n"output_len": 1},\n{"prom', 4, "broken JSON"),
    (f'[\n{ONE}\n{{"prompt_len": 1}}\n]', 2, "neither continues nor ends"),
    (f"[{ONE}]\n{{}}", 1, "text follows"),
    ('[\n{"prompt_len": 1,\n"output_len": 1},\n\n{"prompt_len": 0}]', 5, "prompt_len is 0"),
    ("TIMESTAMP,ContextTokens\n", 1, "no column GeneratedTokens"),
    (AZURE + f"{BAD_TIME},48,1\n", 2, f"TIMESTAMP is '{BAD_TIME}'"),
    (AZURE + '2023-11-16 18:17:03,"1,1\n', 3, "broken CSV"),
    ("TIMESTAMP,ContextTokens\r2023-11-16,1\r", 1, "broken CSV"),
    (BURST + "5,0,0\n", 2, "take the BurstGPT_without_fails files"),
    (BURST + "1e300,1,1\n", 2, "Timestamp is '1e300'"),
    (mooncake(hash_ids=[2**64]), 2, "has 18446744073709551616"),
    (mooncake(hash_ids=[2**63 - 1]), 2, ODD_IDS),
    (mooncake(input_length=600, hash_ids=[-1, 2**64 - 1]), 2, "hash_ids has -1, expected"),
    (blocks(4, prefix_runs=[2**64 - 1, 2]), 1, "prefix_runs has 18446744073709551616, expected"),
    (blocks(2, prefix_runs=[2**63 - 2, 4]), 1, "prefix_runs has 9223372036854775807"),
    (
        lines(MOONCAKE | {"timestamp": 5000}, MOONCAKE), 2,
        "the request arrives at 0.000 s, the one before it at 5.000 s: the clock runs backwards",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "sentence"), DEFECTS, ids=lambda value: str(value)[:40])
def test_a_defect_names_file_and_line(text: str, line: int, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=re.escape(sentence)) as caught:
        list(read_trace(path))
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("name", FORMATS)
def test_a_defect_ends_with_the_shape_of_the_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("{}\n")
    with pytest.raises(TraceError, match=re.escape(f"A {name} trace is {FORMATS[name].shape}.")):
        list(read_trace(path, name))


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_truncated_gzip_says_so(kept: float, tmp_path: Path) -> None:
    rng = random.Random(0)
    whole = gzip.compress(
        lines(*(GOOD | {"input_tokens": rng.randint(1, 10**6)} for _ in range(2000))).encode()
    )
    path = tmp_path / "trace.gz"
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(TraceError, match=r"trace\.gz:\d+: the gzip data ends early: .*truncated"):
        list(read_trace(path))


@pytest.mark.parametrize("begin", ['{"hash_ids":[', '[{"hash_ids":[', '[\n{"hash_ids":[\n'])
def test_millions_of_lists_do_not_fill_the_memory(begin: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(begin + "[]," * 2**22 + "[]]}\n")
    with pytest.raises(TraceError, match="JSON of over 2,097,152 lists and objects"):
        list(read_trace(path, "mooncake"))


@pytest.mark.parametrize(
    ("begin", "piece", "line"),
    [
        (b"[", b" " * 2**20, 1), (b"", b" " * (2**20 - 1) + b"\n", 65),
        (b"", b"\n" * 2**20, 2**20 + 1),
    ],
)  # fmt: skip
def test_endless_blanks_are_refused(begin: bytes, piece: bytes, line: int, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with path.open("wb") as file:
        file.write(begin)
        for _ in range(65):
            file.write(piece)
    with pytest.raises(TraceError, match=rf"trace:{line}: the line is longer than 64 MiB"):
        list(read_trace(path))


@pytest.mark.parametrize(
    ("begin", "sentence"),
    [
        ("{\n", "the document is larger than 0 MiB, and is read as a"),
        ("[\n", "an element is longer than 0 MiB"),
        ('[{"a":\n', "an element is longer than 0 MiB"),
    ],
)
def test_a_document_without_end_does_not_fill_the_memory(
    begin: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "DOCUMENT_BYTES", 1000)
    path = tmp_path / "trace"
    path.write_text(begin + " \n" * 1000)
    with pytest.raises(TraceError, match=sentence):
        list(read_trace(path))


@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_what_is_no_file_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
    with pytest.raises(TraceError, match="it is a pipe or a device, and a trace is read more"):
        read_trace(path)


def test_a_pipe_in_a_folder_of_conversations_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "one.json")
    with pytest.raises(TraceError, match=r"cannot be opened .it is a pipe or a device, not a"):
        list(read_trace(tmp_path))


@given(st.binary(max_size=300), st.sampled_from(["auto", *FORMATS]))
def test_no_bytes_whatsoever_get_past_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"garbage:[0-9]+: "):
        list(read_trace(path, name))


@given(st.data(), st.sampled_from([lines(GOOD, GOOD), lines(MOONCAKE), AZURE + "2023-11-16 1,1"]))
def test_a_trace_with_a_few_bytes_changed_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, text: str
) -> None:
    damaged = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(damaged)
    with suppress(TraceError):
        assert all(request.input_tokens >= 1 for request in read_trace(path))
