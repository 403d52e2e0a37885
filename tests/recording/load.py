"""What a proxy adds to requests at a fixed rate: ``python -m tests.recording.load``.

Server, proxy and clients are three processes. Requests go at even distances, every other one
directly to the server and through the proxy, so that both meet the same machine. One in a hundred
fails, leaves early or sends much; what they answer is compared byte by byte.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
from aiohttp import ClientError, ClientSession, TCPConnector

from dsv4kv.recording.folder import read_stream
from tests.recording.serving import serving

_ODD = ({"mode": "fail"}, {"mode": "leave"}, {"mode": "much", "mib": 4})
_EVERY = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client saw.

    Attributes:
        mode: What it asked for.
        first_s: Until the first byte.
        last_s: Until the last.
        digest: Of all bytes, and of how they ended.
    """

    mode: str
    first_s: float
    last_s: float
    digest: str


def body_of(number: int) -> dict[str, Any]:
    """What the n-th request asks for."""
    odd = _ODD[number // _EVERY % len(_ODD)] if number % _EVERY == 0 else {"mode": "stream"}
    return {"tokens": 300 + number % 7, "name": "chatcmpl-load", **odd}


async def ask(client: ClientSession, url: str, body: dict[str, Any]) -> Answer:
    """One request, read to its end."""
    begun, first_s, content, end = perf_counter(), 0.0, blake2b(digest_size=8), "whole"
    try:
        async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
            async for part in answer.content.iter_any():
                first_s = first_s or perf_counter() - begun
                content.update(part)
    except ClientError:
        end = "cut"
    last_s = perf_counter() - begun
    return Answer(body["mode"], first_s, last_s, f"{content.hexdigest()} {end}")


async def load(urls: Sequence[str], requests: int, rate: float) -> list[list[Answer]]:
    """Ask all urls in turns, ``rate`` requests a second to each."""
    async with ClientSession(connector=TCPConnector(limit=0)) as client:
        begun, tasks = perf_counter(), list[list[asyncio.Task[Answer]]]()
        for number in range(requests):
            tasks.append([])
            for place, url in enumerate(urls):
                due = begun + (number + place / len(urls)) / rate
                await asyncio.sleep(max(0.0, due - perf_counter()))
                tasks[-1].append(asyncio.create_task(ask(client, url, body_of(number))))
        return [list(await asyncio.gather(*each)) for each in tasks]


def describe(answers: Sequence[Sequence[Answer]]) -> str:
    """What the proxy adds, at the median and at the 99th percentile, in milliseconds."""
    plain = [pair for pair in answers if pair[0].mode == "stream"]
    lines = []
    for name in ("first_s", "last_s"):
        direct, through = ([getattr(pair[way], name) * 1e3 for pair in plain] for way in (0, 1))
        cuts = [statistics.quantiles(each, n=100) for each in (direct, through)]
        lines.append(
            f"{name}: direct p50 {cuts[0][49]:.3f} ms, p99 {cuts[0][98]:.3f} ms; through the "
            f"proxy p50 {cuts[1][49]:.3f} ms, p99 {cuts[1][98]:.3f} ms; added at the median "
            f"{cuts[1][49] - cuts[0][49]:.3f} ms"
        )
    return "\n".join(lines)


async def main() -> None:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.serve:
        async with serving() as (_, url):
            print(url, flush=True)
            await asyncio.sleep(3600)
    command = [sys.executable, "-m", "tests.recording.load", "--serve"]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    direct = (await server.stdout.readline()).decode().strip()
    folder = Path(tempfile.mkdtemp()) / "recording"
    command = [sys.executable, "-m", "dsv4kv", "record", str(folder), "--quiet"]
    command += ["--proxy", f"18001={direct}"]
    proxy = await asyncio.create_subprocess_exec(*command)
    await asyncio.sleep(3)
    urls = (direct, "http://127.0.0.1:18001")
    await load(urls, 50, wanted.rate)
    process = psutil.Process(proxy.pid)
    before, begun = process.memory_info().rss, sum(process.cpu_times()[:2])
    answers = await load(urls, wanted.requests, wanted.rate)
    after, ended = process.memory_info().rss, sum(process.cpu_times()[:2])
    proxy.terminate()
    await proxy.wait()
    server.terminate()
    await server.wait()
    rows = sum(1 for _ in read_stream(folder, "requests"))
    differ = sum(one.digest != other.digest for one, other in answers)
    print(describe(answers))
    print(f"{len(answers):,} requests, {differ:,} answers differ, {rows - 50:,} rows")
    print(
        f"the proxy took {(ended - begun) / len(answers) * 1e3:.3f} ms of CPU a request, "
        f"{before >> 20} MiB of memory before and {after >> 20} MiB after"
    )


if __name__ == "__main__":
    asyncio.run(main())
