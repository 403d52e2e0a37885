"""``dsv4kv record`` and what becomes of a recording."""

import asyncio
import gzip
import json
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiohttp import ClientSession

from dsv4kv.record.folder import Recording, read_stream
from tests.cli.shell import invoke as run
from tests.ports import free_port
from tests.record.frames import frames, recorded, stored, written
from tests.record.serving import serving

TOKENS = list(range(1024))
LOGS = Path(__file__).parents[1] / "record" / "logs"


@pytest.fixture
def stored_only(tmp_path: Path) -> Path:
    """A recording of two prompts that share 256 tokens, by events alone."""
    messages = [
        frames(0, stored([1, 2], None, TOKENS[:512], 256)),
        frames(1, stored([3, 4], 1, TOKENS[512:], 256), at_s=2.5),
    ]
    recorded(tmp_path / "recording", messages)
    return tmp_path / "recording"


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A recording of three requests with ids, of which the server told something."""
    rows: list[dict[str, Any]] = [
        {"arrival_s": 12.5, "input_tokens": 200, "output_tokens": 7, "ids": [1, 2, 4]},
        {"arrival_s": 10.0, "input_tokens": 150, "output_tokens": 5, "ids": [1, 2]},
        {"arrival_s": 13.0, "input_tokens": 600, "output_tokens": 0, "ids": list(range(11, 20))},
    ]
    rows[0]["cached_tokens"], rows[1]["cached_tokens"] = 128, 0
    with Recording(tmp_path / "recording") as recording:
        for row in rows:
            recording.write("requests", {"source": "requests:0", "grain": 64} | row)
    return tmp_path / "recording"


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


ODD_URLS = (
    "[/b]", "http://[", "http://]", "http://[::1%]", "http://x\u2100y", "http://x:99999999",
    "http://x:" + "9" * 5_000, "http://\udcff", "http://a..b", "http://" + "x" * 300, "http://x\0y",
    "file:///etc/passwd",
)  # fmt: skip
SECRET_URLS = (
    "http://me:SECRET@host:99999", "http://me:SE@SECRET=@host:99999/path",
    "ftp://host/?key=SECRET", "tcp://me:SECRET@127.0.0.1", "ftp://host/#SECRET",
)  # fmt: skip
RECORD = "record recording --seconds 0"
ADDRESSES = (
    "probe {url}",
    "probe http://127.0.0.1:9 --metrics {url}",
    f"{RECORD} --metrics {{url}}",
    f"{RECORD} --proxy 0={{url}}",
)


@pytest.mark.parametrize(
    "words",
    [
        *ADDRESSES,
        f"{RECORD} --proxy {{host}}:0=http://127.0.0.1:9",
        f"{RECORD} --proxy 127.0.0.1:{{host}}=http://127.0.0.1:9",
        f"{RECORD} --events {{tcp}}",
        f"{RECORD} --events tcp://127.0.0.1:9 --replay {{tcp}}",
    ],
)
@pytest.mark.parametrize("url", ODD_URLS, ids=range(len(ODD_URLS)))
@pytest.mark.usefixtures("empty_folder")
def test_an_address_that_is_none_is_a_sentence(words: str, url: str) -> None:
    host = url.removeprefix("http://")
    done = run(*(word.format(url=url, host=host, tcp=f"tcp://{host}") for word in words.split()))
    assert done.exit_code == 2, done.output
    assert re.search(r"(?m)^error: .*: give (http|tcp|PORT)", done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        *ADDRESSES,
        f"{RECORD} --proxy {{url}}",
        f"{RECORD} --events {{url}}",
        f"{RECORD} --events {{url}} --ranks 2",
        f"{RECORD} --events tcp://127.0.0.1:9 --replay {{url}}",
    ],
)
@pytest.mark.parametrize("url", SECRET_URLS)
@pytest.mark.usefixtures("empty_folder")
def test_a_sentence_about_an_address_tells_no_secret(words: str, url: str) -> None:
    done = run(*words.format(url=url).split())
    assert done.exit_code == 2, done.output
    assert "SECRET" not in done.output.replace("\n", "")
    assert "host" in done.output or "127.0.0.1" in done.output


@pytest.mark.parametrize("line", ["{}\n", "\n"])
def test_a_log_that_unpacks_to_what_none_holds_is_refused(line: str, tmp_path: Path) -> None:
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(line.encode() * 2**20))
    with patch("dsv4kv.files._SPARED_BYTES", 2**16):
        done = run("record", tmp_path / "recording", "--requests", log, "--once")
    assert done.exit_code == 4, done.output
    assert "unpacks to over 200 times its size" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "said", "makes"),
    [
        ("--metrics http://127.0.0.1:1 --seconds 1 --every 1e308", "--every", False),
        ("--metrics http://127.0.0.1:1 --seconds 1 --every nan", "--every", False),
        ("--events tcp://127.0.0.1:1 --ranks 100000000", "--ranks", False),
        ("--requests /dev/zero --once", "is no file", False),
        ("--requests absent.log --once", "there is no such log", False),
        ("--events absent.bin", "is not the address of a publisher", False),
        ("--requests me:SEC/RET@host:1", "***@host:1", False),
        ("--events me:SEC/RET@host:1", "***@host:1", False),
        ("--events tcp://me:SECRET@127.0.0.1:9", "tcp://***@127.0.0.1:9: cannot be", True),
        ("--proxy {taken}=http://127.0.0.1:1", "take another port", True),
    ],
)  # fmt: skip
def test_what_no_source_can_be_is_a_sentence_without_secrets_and_makes_no_folder(
    words: str, said: str, makes: bool, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("record", tmp_path / "server", *words.format(taken=port).split())
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.stderr.split())
    assert "SEC" not in done.output
    assert "RET" not in done.output
    assert (tmp_path / "server").exists() == makes


@pytest.mark.parametrize("package", ["zmq", "msgspec"])
def test_without_the_extra_a_sentence_says_how_to_install_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = run("record", tmp_path / "recording", "--events", "tcp://127.0.0.1:5557")
    assert done.exit_code == 2
    assert "pip install 'dsv4kv[record]'" in done.output


def test_a_recording_that_is_no_trace_says_what_to_give(asked: Path, tmp_path: Path) -> None:
    written(tmp_path / "empty", "events")
    run("record", asked, "--requests", LOGS / "lmcache.jsonl", "--once")
    for folder, said in (
        (tmp_path / "empty", "no request was recorded"),
        (asked, "ids of 64 and 256 tokens"),
    ):
        done = run("trace", "convert", folder, tmp_path / "out")
        assert done.exit_code == 4
        assert said in done.output


def test_a_recording_becomes_a_trace_in_order_of_arrival(asked: Path, tmp_path: Path) -> None:
    done = run("trace", "convert", asked, tmp_path / "trace.jsonl")
    assert done.exit_code == 0, done.output
    assert "by the server 128 of 350 prompt tokens were cached (36.57%), of 2 of 3" in done.output
    names = "arrival_s", "input_tokens", "output_tokens", "prefix_hashes", "hash_block_tokens"
    rows = [(0.0, 150, 5, [1, 2], 64), (2.5, 200, 7, [1, 2, 4], 64)]
    expected = [dict(zip(names, row, strict=True)) for row in rows]
    assert lines(tmp_path / "trace.jsonl")[:2] == expected
    run("trace", "convert", asked, tmp_path / "part.jsonl", "--skip", "1", "--limit", "1")
    assert lines(tmp_path / "part.jsonl") == [expected[1] | {"arrival_s": 2.5}]


@pytest.mark.parametrize("to", ["dsv4kv", "mooncake"])
def test_what_was_only_stored_is_marked_and_has_no_hit_rate(
    to: str, stored_only: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    done = run("trace", "convert", stored_only, trace, "--to", to)
    assert "stores-only" in done.output
    assert all(line["stores_only"] is True for line in lines(trace))
    told = run("trace", "info", trace)
    assert "stores-only" in told.output
    assert "prefix hits" not in told.output
    document = json.loads(run("trace", "info", trace, "--json").output)
    assert document["stores_only"] is True
    assert "hit_share" not in document
    for command in (("trace", "mrc", trace), ("replay", trace, "--quiet")):
        refused = run(*command)
        assert refused.exit_code != 0
        assert "%" not in refused.output
    assert "it has no hit rate" in run("trace", "mrc", trace).output
    run("trace", "convert", trace, tmp_path / "two.jsonl")
    assert all(line["stores_only"] for line in lines(tmp_path / "two.jsonl"))
    document = json.loads(run("trace", "info", stored_only, "--json").output)
    assert (document["format"], document["stores_only"]) == ("recording", True)
    assert "hit_share" not in document


def test_gaps_and_restarts_of_a_recording_are_said(asked: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl"
    said = ("1 gap in the recording, ", "cleared its cache 1 time: it found nothing",
            "3 messages of KV events lost")  # fmt: skip
    commands = (("trace", "convert", asked, out), ("trace", "info", asked))
    for words in commands:
        quiet = run(*words).output
        assert not [each for each in said if each in quiet]
    begun = {"process_start_time_seconds": 1.0}, {"process_start_time_seconds": 2.0}
    with Recording(asked) as recording:  # the gap since the fixture stopped
        for values in begun:
            recording.write("metrics", {"source": "metrics:0", "values": values})
        recording.write("events", {"source": "events:0", "what": "gap", "first": 3, "last": 5})
    for words in commands:
        done = run(*words)
        assert done.exit_code == 0, done.output
        assert not [each for each in said if each not in " ".join(done.output.split())]
    document = json.loads(run("trace", "info", asked, "--json").output)
    assert (document["requests"], len(document["breaks"])) == (3, 3)


LATE = {"arrival_s": 20.0, "input_tokens": 130}
PROXIED = {"source": "proxy:0", "grain": 64} | LATE
GREW = {"vllm:prefix_cache_queries_total": 100, "vllm:prefix_cache_hits_total": 10}


@pytest.mark.parametrize(
    ("stream", "rows", "said", "ids"),
    [
        (
            "metrics",
            [
                {"source": "metrics:0", "values": GREW},
                {"source": "metrics:0", "values": dict(zip(GREW, (450, 80), strict=True))},
            ],
            "by vLLM's counters 70 of 350 prompt tokens were cached (20.00%)",
            {1, 2, 4},
        ),
        (  # tokens are better than text
            "requests",
            [
                *(PROXIED | {"ids": [7, 8], "ids_of": "text", "id": name} for name in (1, 2)),
                {"source": "requests:0:1", "grain": 64, "id": 2, "ids": [1, 2]} | LATE,
            ],
            "ids of 1 prompt are of text: what they share is estimated",
            {7, 8, 1, 2},
        ),
        (
            "requests",
            [{"source": "requests:1", "id": name} | LATE for name in (1, 2)],
            "4 blocks of prompts known by length only",
            4,
        ),
    ],
    ids=["counters", "text", "lengths"],
)
def test_what_is_known_of_prompts_and_how_is_told(
    stream: Any, rows: list[Any], said: str, ids: Any, asked: Path, tmp_path: Path
) -> None:
    with Recording(asked) as recording:
        for row in rows:
            recording.write(stream, row)
    done = run("trace", "convert", asked, tmp_path / "trace.jsonl")
    assert said in done.output
    written = [line["prefix_hashes"] for line in lines(tmp_path / "trace.jsonl")]
    last = {one for each in written[-2:] for one in each}
    assert ids in (last, len(last)) or stream == "metrics"


def test_the_guide_leads_from_a_log_to_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "record.md").read_text("utf-8")
    section = page.partition("## From a server to an answer")[2].partition("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sglang.log").write_text((LOGS / "sglang.log").read_text("utf-8"))
    commands = [line for line in section.splitlines() if line.startswith("dsv4kv ")]
    assert len(commands) == 6
    for command in commands:
        done = run(*command.partition("#")[0].split()[1:])
        assert done.exit_code == 0, f"{command}: {done.output}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whatever_ends_it_no_finished_request_is_lost(number: int, tmp_path: Path) -> None:
    folder, count = tmp_path / "recording", 20

    async def ask(url: str) -> None:
        async with ClientSession() as client:
            for _ in range(count):
                async with client.post(f"{url}/v1/chat/completions", json={}) as answer:
                    await answer.read()

    async def test() -> None:
        async with serving() as (_, direct):
            port = free_port()
            command = [sys.executable, "-m", "dsv4kv", "record", str(folder), "--quiet"]
            command += ["--proxy", f"{port}={direct}"]
            process = await asyncio.create_subprocess_exec(*command)
            while not accepts(port):
                await asyncio.sleep(0.05)
            await ask(f"http://127.0.0.1:{port}")
            process.send_signal(number)
            assert await asyncio.wait_for(process.wait(), 300) == 0

    # What a shell began in the background ignores SIGINT, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(test())
    finally:
        signal.signal(signal.SIGINT, before)
    assert [row["input_tokens"] for row in read_stream(folder, "requests")] == [300] * count
    assert [note["what"] for note in read_stream(folder, "notes")] == ["start", "stop"]


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_proxy_that_others_reach_says_what_that_means(tmp_path: Path) -> None:
    words = ("record", tmp_path / "recording", "--seconds", "0", "--proxy")
    done = run(*words, "0.0.0.0:0=http://127.0.0.1:8000")
    assert "anyone who reaches it uses the server behind it" in done.output
    assert "whoever" not in run(*words, "0=http://127.0.0.1:8000").output
