"""What engines and tools log of requests is read: lengths, hits, times, sessions, ids.

The lines in ``logs/`` were written by the classes of SGLang 0.5.23 (``RequestLogger`` at levels 3,
0 and 2, ``FileRequestMetricsExporter``), vLLM 0.33 (``RequestLogger``, ``NewLineFormatter``) and
LMCache 0.5.6 (``LookupHashLoggingSubscriber``) for requests made up here; those of Dynamo
follow its description.
"""

import json
import re
import subprocess
import sys
from datetime import datetime, tzinfo
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.record import Veil
from dsv4kv.record.folder import Record
from dsv4kv.record.logs import LOGS, read_line

LINES = {path.stem: path for path in (Path(__file__).parent / "logs").iterdir()}
VEIL = Veil(b"s" * 32)


def rows(name: str, veil: Veil = VEIL) -> list[Record]:
    lines = LINES[name].read_text("utf-8").splitlines()
    return [row for line in lines if (row := read_line(line, veil)) is not None]


ALL, SESSION = VEIL.prompt(range(1, 200)), VEIL.name("sess")
LEVEL_3 = {"input_tokens": 199, "output_tokens": 2, "cached_tokens": 128, "ids": ALL}
AT = 1_795_391_347.25
READ: list[tuple[str, int, Record]] = [
    ("sglang", 0, {"session": SESSION, "ids": ALL}),
    ("sglang", 1, LEVEL_3 | {"session": SESSION, "cached_by": {"device": 64, "host": 64}}),
    ("sglang", 3, {"ids": None, "input_tokens": 199, "cached_tokens": 128}),  # below level 3
    ("sglang", 5, {"ids": None, "input_tokens": 3000, "cached_tokens": 128}),
    ("sglang-metrics", 0, LEVEL_3 | {"arrival_s": AT, "first_s": AT + 0.125, "last_s": AT + 0.5}),
    ("vllm", 0, {"ids": VEIL.prompt(range(1, 151)), "input_tokens": 150, "output_tokens": None}),
    ("vllm", 1, {"output_tokens": 3}),
    ("vllm", 2, {"input_tokens": 70}),  # not those that a prompt quotes
    ("vllm", 3, {"output_tokens": 2}),  # of pieces that were streamed none counts
    ("dynamo", 0, {"input_tokens": 150, "output_tokens": 20, "cached_tokens": 0, "grain": 64,
                   "arrival_s": AT + 3.0, "last_s": AT + 3.9}),
    ("lmcache", 0, {"input_tokens": 700, "grain": 256, "arrival_s": AT + 3.25}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "number", "told"), READ)
def test_a_line_tells_lengths_hits_times_and_ids(name: str, number: int, told: Record) -> None:
    row = rows(name)[number]
    found = {field: row.get(field) for field in told}
    assert found == {
        field: pytest.approx(value) if field.endswith("_s") else value
        for field, value in told.items()
    }


def test_lines_of_a_request_have_its_id_and_blocks_are_named_by_what_came_before() -> None:
    for name in ("sglang", "vllm"):
        asked, answered, *_ = rows(name)
        assert asked["id"] == answered["id"]
    _, finished, *_ = rows("sglang")
    assert finished["last_s"] - finished["arrival_s"] == pytest.approx(0.5)
    first, second, wrapped = rows("dynamo")
    assert len(first["ids"]) == 2  # of full blocks
    assert first["ids"][0] == wrapped["ids"][0]
    assert first["session"] == second["session"]
    for one, other in ((first, second), rows("lmcache")):
        assert one["ids"][0] == other["ids"][0]
        assert one["ids"][1] != other["ids"][1]


@pytest.mark.parametrize(
    "quoted",
    [
        "11-27 10:00:00 [a] Request cmpl-5 details: prompt: , prompt_token_ids: [1, 2, 3]",
        "11-27 10:00:00 [a] Generated response cmpl-5 details: output_token_ids: [1, 2]",
    ],
)
@pytest.mark.parametrize(
    "begin", ["INFO 11-27 09:00:00 [b] ", "INFO 11-27 09:00:00 [b] Generated "]
)
def test_what_a_line_of_vllm_quotes_is_no_request(begin: str, quoted: str) -> None:
    assert read_line(f"INFO {quoted}", VEIL) is not None
    assert read_line(f"{begin}response a: output: '{quoted}', output_token_ids: [7]", VEIL) is None


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("cmpl-7a-0", "cmpl-7a"),
        ("resp_7a_0", "resp_7a"),
        ("chatcmpl-7a", "chatcmpl-7a"),
        ("cmpl-7a-1", "cmpl-7a-1"),  # another prompt of a batch
        ("own-0", "own-0"),
    ],
)
def test_a_request_of_vllm_has_the_id_of_its_answer(asked: str, answered: str) -> None:
    """``completion/serving.py`` and ``responses/serving.py`` of vLLM 0.33 number the parts."""
    line = f"INFO 11-22 10:00:00 [a] Request {asked} details: prompt: '', prompt_token_ids: [5], "
    coloured = line.replace("11-22", "\x1b[90m11-22").replace("[a]", "[a]\x1b[0m")
    for each in (line, coloured):
        row = read_line(each, VEIL)
        assert row is not None
        assert row["id"] == VEIL.name(answered)
    older = line.replace("Request", "Received request").replace(" details", "")
    assert read_line(older, VEIL) == read_line(line, VEIL)


@pytest.mark.parametrize(
    ("now", "written", "year"),
    [
        ("2026-07-01T12:00:00", "07-01 11:59:59", 2026),
        ("2026-07-01T12:00:00", "07-01 12:00:03", 2026),  # a clock that is ahead
        ("2026-07-01T12:00:00", "07-02 02:00:00", 2026),  # of another time zone
        ("2026-07-01T12:00:00", "07-03 00:00:00", 2025),
        ("2026-12-31T23:59:59", "01-01 00:00:01", 2027),
        ("2027-01-01T00:00:01", "12-31 23:59:59", 2026),
    ],
)
def test_a_line_of_vllm_is_of_the_year_that_ends_tomorrow(
    now: str, written: str, year: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Clock":
            return cls.fromisoformat(now).astimezone(tz)

    monkeypatch.setattr("dsv4kv.record.logs.datetime", Clock)
    row = read_line(f"INFO {written} [a] Request b: prompt: '', prompt_token_ids: [5]", VEIL)
    assert row is not None
    assert row["arrival_s"] == datetime.fromisoformat(f"{year}-{written}").timestamp()


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("lmcache", "1795391350.5", "NaN"),
        ("lmcache", '"chunk_size": 256', '"chunk_size": 0'),
        ("dynamo", '"trace_block_size": 64', '"trace_block_size": 0'),
        ("dynamo", "1795391350250", "Infinity"),
        ("sglang", '"e2e_latency": ', '"e2e_latency": 1e999, "was": '),
    ],
)
def test_an_odd_number_tells_of_no_request(name: str, before: str, after: str) -> None:
    line = next(one for one in LINES[name].read_text("utf-8").splitlines() if before in one)
    assert read_line(line, VEIL) is not None
    assert read_line(line.replace(before, after), VEIL) is None


@pytest.mark.parametrize("name", ["sglang", "dynamo"])
@pytest.mark.parametrize("hits", ["-1", '"7"', "2.5"])
def test_a_request_whose_hits_are_no_number_is_one_of_unknown_hits(name: str, hits: str) -> None:
    lines = LINES[name].read_text("utf-8").splitlines()
    line = next(one for one in lines if '"cached_tokens": ' in one)
    right = read_line(line, VEIL)
    assert right is not None
    row = read_line(re.sub(r'"cached_tokens": \d+', f'"cached_tokens": {hits}', line), VEIL)
    assert row == {name: value for name, value in right.items() if name != "cached_tokens"}


@pytest.mark.parametrize("name", LINES)
@given(data=st.data())
def test_a_line_that_was_damaged_is_a_row_or_none(name: str, data: st.DataObject) -> None:
    line = data.draw(st.sampled_from(LINES[name].read_text("utf-8").splitlines()))
    at = data.draw(st.integers(0, len(line)))
    junk = data.draw(st.sampled_from(["", "null", "-1", '"', "[]", "1e999", "{}", "x", "9" * 40]))
    read_line(line[:at] + junk + line[at + len(junk) :], VEIL)
    read_line(line[:at], VEIL)


@pytest.mark.parametrize("name", LOGS)
def test_a_line_that_only_speaks_of_a_format_has_no_request(name: str) -> None:
    said = {"message": f"a client asked: what is {LOGS[name][0]}v1?"}
    for text in (json.dumps(said), json.dumps([said]), json.dumps({"a": said}), said["message"]):
        assert read_line(text, VEIL) is None


@pytest.mark.parametrize("begin", ["01-01 00:00:00 [", "01-01 00:00:00 [] Request a: prompt: "])
def test_a_prompt_that_quotes_a_log_again_and_again_is_read_in_no_time(begin: str) -> None:
    program = (
        "from dsv4kv.record.logs import read_line\n"
        "from dsv4kv.record import Veil\n"
        f"assert read_line({begin!r} * 200_000 + 'prompt_token_ids: None', Veil(b's')) is None"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)  # else hours


@pytest.mark.parametrize("value", ["\ud800", 7, ["a", "b"], {"a": 1}, 10**400])
@pytest.mark.parametrize("field", ["rid", "session_id", "extra_key"])
def test_what_a_client_names_loses_no_row(field: str, value: object) -> None:
    line = json.loads(
        next(line for line in LINES["sglang"].read_text().splitlines() if "finished" in line)
    )
    (line if field == "rid" else line["obj"])[field] = value
    row = read_line(json.dumps(line), VEIL)
    assert row is not None
    assert [row[n] for n in ("input_tokens", "output_tokens", "cached_tokens")] == [199, 2, 128]
