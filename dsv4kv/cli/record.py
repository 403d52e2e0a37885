"""``dsv4kv record`` and ``watch``: what a running server does, written down and at a glance."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from dsv4kv import __version__
from dsv4kv.cli import command
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError, Dsv4kvError
from dsv4kv.record import GRAIN_TOKENS, LEAST_TOKENS, Veil
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from rich.console import Group

    from dsv4kv.record.folder import Recording
    from dsv4kv.record.run import Source
    from dsv4kv.record.server import Glance

_UNHEARD = OSError, SystemExit
"""Of a log on a full disk, a terminal or a pipe that is gone: rich ends at a closed pipe."""
_EVENTS: dict[str, Any] = {"panel": "KV events"}
_REQUESTS: dict[str, Any] = {"panel": "Requests"}
_METRICS: dict[str, Any] = {"panel": "Metrics"}
_WHERE = "Where the server publishes KV events (its --kv-events-config): tcp://HOST:PORT."
_AGAIN = "Where it sends again what was lost: its replay_endpoint."
_RANKS = "Data-parallel ranks; each publishes a port above the last."
_PROXY = (
    "Listen here and pass everything on to a server with an OpenAI-compatible API: "
    "8001=http://127.0.0.1:8000. Only this machine reaches it, unless a host is named: "
    "0.0.0.0:8001=…."
)
_LOGS = (
    "A log of requests, or a folder of them, followed while it grows: SGLang's --log-requests "
    "(JSON, level 3) or --export-metrics-to-file, vLLM's debug log, Dynamo's request trace, "
    "LMCache's lookup hashes."
)
_PAGE = "Page of the server's counters: http://HOST:PORT/metrics."
_EVERY: dict[str, Any] = {"min": 0.1, "max": 86_400.0, "default": 5.0} | _METRICS
_ID_TOKENS = (
    "Tokens that an id of a prompt stands for: no more than a block of the server, so that a "
    "replay can hit what it hit."
)
_LIMIT: dict[str, Any] = {"min": 0.0, "shown": "until Ctrl-C"}


@command(
    "record",
    "dsv4kv record server --events tcp://127.0.0.1:5557                 until Ctrl-C",
    "dsv4kv record server --events tcp://127.0.0.1:5557 --seconds 600   ten minutes",
    "dsv4kv record server --proxy 8001=http://127.0.0.1:8000            requests through it",
    "dsv4kv record server --requests sglang.log --metrics http://127.0.0.1:30000",
)
def record(
    out: Path = opt.required("Folder to record into; an existing recording is continued.", "OUT"),
    events: opt.Text = opt.option(_WHERE, "URL", **_EVENTS),
    replay: opt.Text = opt.rare(_AGAIN, "URL", **_EVENTS),
    ranks: int = opt.rare(_RANKS, min=1, max=2**16, **_EVENTS, default=1),
    proxy: opt.Texts = opt.option(_PROXY, "[HOST:]PORT=URL", **_REQUESTS),
    requests: opt.Texts = opt.option(_LOGS, "FILE", **_REQUESTS),
    once: bool = opt.rare("Read what the logs hold now, then end.", **_REQUESTS, default=False),
    metrics: opt.Texts = opt.option(_PAGE, "URL", **_METRICS),
    every_s: float = opt.rare("Seconds between samples.", "SECONDS", "--every", **_EVERY),
    id_tokens: int = opt.rare(_ID_TOKENS, min=LEAST_TOKENS, default=GRAIN_TOKENS),
    limit_s: float | None = opt.option("How long to record.", None, "--seconds", **_LIMIT),
    quiet: bool = opt.QUIET,
) -> None:
    """Record a running server's KV events, requests and metrics into a folder.

    Prompts, tokens, keys and addresses are replaced by irreversible numbers. A recording that was
    interrupted, also by kill -9, is continued where it stopped.
    """
    from rich.text import Text as Line

    from dsv4kv.cli.progress import Redrawn
    from dsv4kv.record.folder import Recording
    from dsv4kv.record.logs import RequestLog
    from dsv4kv.record.metrics import Metrics
    from dsv4kv.record.run import run
    from dsv4kv.record.server import Live
    from dsv4kv.view.render import show

    if not (events or proxy or requests or metrics):
        raise ConfigError("nothing to record: give --events, --proxy, --requests or --metrics.")
    live = Live()
    about = {
        "dsv4kv": __version__,
        "ranks": ranks if events else 0,
        "replay": replay is not None,
        "proxies": len(proxy or []),
        "logs": len(requests or []),
        "pages": len(metrics or []),
        "every_s": every_s,
        "id_tokens": id_tokens,
    }

    def draw() -> None:
        line = live.line()
        with suppress(*_UNHEARD):
            screen.show(lambda: Line(line, no_wrap=True, overflow="ellipsis"), line)

    is_new = not out.exists()
    with Recording(out, hear=live.hear, about=about) as recording:
        veil = Veil(recording.salt, id_tokens)
        try:
            sources: list[Source] = [
                *_events_of(events, replay, ranks, recording, veil),
                *_proxies_of(proxy or [], recording, veil),
            ]
            for number, log in enumerate(requests or []):
                path, follow = Path(log), not once
                source = RequestLog(number, path, recording, veil, follow=follow, warn=_warn)
                sources.append(source)
            for number, page in enumerate(metrics or []):
                sources.append(Metrics(number, page, every_s, recording, _warn))
        except Dsv4kvError:
            if is_new:
                rmtree(out)
            raise
        console = open_console(stderr=True, quiet=quiet)
        # Ctrl-C is the way to end it
        with suppress(KeyboardInterrupt), Redrawn(console, transient=True) as screen:
            run(sources, recording, limit_s=limit_s, tick=draw, warn=_warn)
    if events and not (live.batches or live.unread):
        _warn("--events: no message came. Is the server idle, or this another port than its own?")
    show([f"{out}: {live.line(whole=True)}"])


def _warn(text: str) -> None:
    with suppress(*_UNHEARD):
        say(text, err=True)


def _events_of(
    events: str | None, replay: str | None, ranks: int, recording: "Recording", veil: "Veil"
) -> "Iterator[Source]":
    from dsv4kv.record.events import Publisher, Socket, ranks_of

    if events is None:
        return
    replays = ranks_of(replay, ranks) if replay else [None] * ranks
    for rank, (url, again) in enumerate(zip(ranks_of(events, ranks), replays, strict=True)):
        yield Socket(url, again, Publisher(rank, recording, veil))


def _proxies_of(proxies: list[str], recording: "Recording", veil: "Veil") -> "Iterator[Source]":
    from dsv4kv.record.proxy import Proxy, parse_address

    for number, text in enumerate(proxies):
        address = parse_address(text)
        if address.is_public:
            say(
                f"--proxy listens on {address.host}:{address.port}, not only for this machine: "
                "anyone who reaches it uses the server behind it, and nothing that passes is "
                "encrypted.",
                err=True,
            )
        yield Proxy(number, address, recording, veil, proxies=len(proxies), warn=_warn)


# ---- watch

_DRAWN_S = 1.0
_FOLDER = "A folder that dsv4kv record writes, or has written."
_SECONDS = "How long; 0 reads what there is, once."


@command(
    "watch",
    "dsv4kv watch server                                 while dsv4kv record server … runs",
    "dsv4kv watch server --minutes 30",
)
def watch(
    recording: Path = opt.required(_FOLDER, "RECORDING"),
    minutes: float = opt.rare("Minutes up to the last record.", min=0.1, default=10.0),
    limit_s: float | None = opt.rare(_SECONDS, None, "--seconds", **_LIMIT),
) -> None:
    """Watch the cache of a server that is recorded: hits, churn, cached blocks.

    Reported and inferred figures are separate. In a pipe it prints a line every 10 seconds.
    """
    from dsv4kv.cli.progress import Redrawn
    from dsv4kv.record import folder, server
    from dsv4kv.view.recorded import watch_line

    if not folder.is_recording(recording):
        raise ConfigError(f"{recording} is no recording: name a folder of dsv4kv record.")
    follower, watched = server.Follower(recording), server.Watched(minutes * 60.0)
    begun_s = monotonic()
    with suppress(KeyboardInterrupt), Redrawn(open_console()) as screen:  # the way to end it
        while True:
            for stream, record in follower.read():
                watched.take(stream, record)
                if limit_s and monotonic() - begun_s >= limit_s:
                    say(f"{recording}: not read to its end in {limit_s:g} s.", err=True)
                    break
            left_s = 1.0 if limit_s is None else limit_s - (monotonic() - begun_s)
            glance = watched.glance(follower.damaged)
            screen.show(partial(_draw, glance), watch_line(glance), last=left_s <= 0)
            if left_s <= 0:
                return
            sleep(min(_DRAWN_S, left_s))


def _draw(glance: "Glance") -> "Group":
    from rich.console import Group

    from dsv4kv.view import recorded, render

    return Group(*map(render.Drawing, recorded.dashboard(glance)))
