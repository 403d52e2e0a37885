"""Nothing of what was said, and nothing of who said it, is in any file of a recording.

Every field that a source has is marked: texts with a word, tokens with numbers of their own.
"""

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from dsv4kv.record import Veil
from dsv4kv.record.folder import Recording, read_stream, segments
from dsv4kv.record.logs import RequestLog
from dsv4kv.record.metrics import Metrics
from tests.record.frames import frames, recorded, stored
from tests.record.serving import proxied, serving
from tests.record.test_logs import LINES
from tests.record.test_metrics import serving as serving_metrics

WORD = "SECRET"
TOKENS = range(700_000_001, 700_001_001)
ADDRESS = "127.0.0.1"


def told(folder: Path) -> list[str]:
    """What of the marks is in the files of a recording, but for its salt."""
    found = []
    for path in folder.iterdir():
        text = path.read_bytes().decode("utf-8", "replace")
        if path.name != "salt":
            found += re.findall(rf"(?i:{WORD})|{re.escape(ADDRESS)}|localhost", text)
    streams = ("notes", "events", "requests", "metrics")
    values = [value for name in streams for value in read_stream(folder, name)]
    return [*found, *(str(one) for one in numbers(values) if one in TOKENS)]


def numbers(value: Any) -> Iterator[int]:
    """All whole numbers in a document."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int):
        yield value


def lines(folder: Path, stream: str) -> int:
    return sum(path.read_bytes().count(b"\n") for path in segments(folder, stream))


def test_of_events(tmp_path: Path) -> None:
    texts = "medium lora_name session_id cache_salt locality ownership kv_cache_spec_kind unknown"
    marked: dict[str, Any] = {name: f"{WORD}-{name}" for name in texts.split()}
    marked["extra_keys"] = [[WORD, WORD.encode()], None]
    marked["lookahead_token_ids"] = [list(TOKENS[:4])] * 2
    tokens = list(TOKENS[:32])
    pairs = [[token, token + 1] for token in tokens]
    messages = [
        frames(0, stored([1, 2], None, tokens, 16, **marked)),
        frames(1, stored([3, 4], 2, pairs, 16, medium="GPU")),
        frames(2, stored([WORD.encode() * 5] * 2, None, tokens, 16)),
        frames(3, stored(list(TOKENS[:4]), None, tokens[:4], 1)),
    ]
    messages[0][0] = WORD.encode()
    recorded(tmp_path / "recording", messages)
    assert lines(tmp_path / "recording", "events") == len(messages)
    assert told(tmp_path / "recording") == []


def test_of_logs(tmp_path: Path) -> None:
    logs = tmp_path / WORD
    logs.mkdir()
    for name, path in LINES.items():
        (logs / f"{WORD}-{name}").write_text(_marked(path.read_text("utf-8")))
    with Recording(tmp_path / "recording") as recording:
        veil = Veil(recording.salt)
        RequestLog(0, logs, recording, veil, follow=False).run(threading.Event())
    rows = list(read_stream(tmp_path / "recording", "requests"))
    assert len(rows) == 16  # every row of test_logs
    assert told(tmp_path / "recording") == []


def _marked(text: str) -> str:
    """Lines whose texts are marked, and whose lists of numbers are of marked tokens."""
    tokens = ", ".join(map(str, TOKENS[:130]))
    text = re.sub(r"\[1, 2, 3, [\d, ]*\]", f"[{tokens}]", text)
    for said in (
        "hello",
        "a secret",
        "req-",
        "cmpl-",
        "chatcmpl-",
        'sess"',
        "sess\\\\",
        "agent-1",
    ):
        text = text.replace(said, WORD + said)
    return text


def test_of_metrics(tmp_path: Path) -> None:
    names = ("vllm:prompt_tokens_total", "sglang:cached_tokens_total", "vllm:cache_config_info")
    labels = ("model_name", "engine", "source", "cache_source", "dp_rank", "block_size", "api_key")
    page = "\n".join(f'{name}{{{label}="{WORD}"}} 1' for name in names for label in labels)
    stop = threading.Event()
    stop.set()
    with (
        serving_metrics([f"{page}\n{WORD}_total 5\n"]) as url,
        Recording(tmp_path / "recording") as recording,
    ):
        Metrics(0, url.replace("http://", f"http://{WORD}:{WORD}@"), 1.0, recording).run(stop)
        Metrics(1, url, 1.0, recording).run(stop)
    assert lines(tmp_path / "recording", "metrics") == 4
    assert told(tmp_path / "recording") == []


def test_of_a_proxy(tmp_path: Path) -> None:
    headers = "Authorization Cookie X-Api-Key X-Session-ID X-Forwarded-For User-Agent Referer"
    body = {
        "model": WORD, "messages": [{"role": "user", "content": f"{WORD} " * 900}],
        "tools": [{"name": WORD}], "user": WORD, "session_id": WORD, "metadata": {WORD: WORD},
        "prompt": list(TOKENS), "tokens": 1000,
    }  # fmt: skip

    async def ask(url: str) -> None:
        async with ClientSession(
            headers=dict.fromkeys(headers.split(), f"Bearer {WORD}")
        ) as client:
            for mode in ("plain", "stream", "fail", "leave"):
                for more in ({}, {"prompt": None}):
                    document = body | {"mode": mode} | more
                    path = f"/v1/chat/completions?key={WORD}"
                    try:
                        async with client.post(url + path, json=document) as answer:
                            await answer.read()
                    except OSError:
                        assert mode == "leave"
                    except Exception:  # the payload is not whole
                        assert mode == "leave"

    async def test() -> None:
        recording = tmp_path / "recording"
        async with serving() as (_, direct), proxied(recording, direct) as (url, rows):
            await ask(url)
            while len(rows) < 8:
                await asyncio.sleep(0.01)

    asyncio.run(test())
    rows = list(read_stream(tmp_path / "recording", "requests"))
    assert sum("ids" in row for row in rows) >= 4
    assert all("session" in row for row in rows)
    assert told(tmp_path / "recording") == []
