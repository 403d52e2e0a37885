"""The client asks a server over HTTP, and the command shows what it learned."""

import json
import math
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.diagnose.questioner import KEYS, OpenAiServer, Refused, Unreachable, _Heard
from tests.diagnose.probe.fakes import FakeServer, Setting, open_cache

KEY = "sk-not-to-be-written"


@contextmanager
def serving(
    fake: FakeServer,
    *,
    first: tuple[int, int, dict[str, str]] | None = None,
    model: str = "a-model",
    said: bytes = b"\x1b[31mbusy",
) -> Iterator[tuple[str, list[Any]]]:
    """A fake server behind a socket: its address, and what was asked.

    ``first``: how many prompts it answers with a status and headers, and ``said``, instead.
    """
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            metrics = "".join(f"{k} {v}\n" for k, v in fake.values.items())
            models = json.dumps({"data": [{"id": model}]})
            self._say(200, metrics if self.path == "/metrics" else models)

        def do_POST(self) -> None:
            body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
            heard.append((self.path, body, self.headers.get("authorization")))
            if first and len(heard) <= first[0]:
                self._say(first[1], said, first[2])
                return
            salt = body.get("cache_salt")
            try:
                answer = fake.ask(tuple(body["prompt"]), body["max_tokens"], salt, 9.0)
            except Unreachable:
                self.close_connection = True
                return
            except Refused as refusal:
                self._say(400, str(refusal))
                return
            details = {"cached_tokens": answer.cached_tokens}
            usage = {"prompt_tokens": answer.prompt_tokens, "prompt_tokens_details": details}
            logprobs = {"tokens": answer.words, "top_logprobs": answer.likely}
            events = (
                {"choices": [{"text": "x", "logprobs": logprobs}]},
                {"choices": [], "usage": usage},
            )
            lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            self._say(200, lines + "data: [DONE]\n\n")

        def _say(self, status: int, said: str | bytes, headers: Any = ()) -> None:
            text = said.encode() if isinstance(said, str) else said
            self.send_response(status)
            for name, value in {**dict(headers), "content-length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}", heard
        finally:
            listening.shutdown()
            thread.join()


def fake(**options: Any) -> FakeServer:
    return FakeServer(open_cache(Setting("vllm", 60, 128)), **options)


@pytest.mark.parametrize(
    ("first", "said", "sentence"),
    [
        (400, b"text only", "takes no completions of token ids: the server refused"),
        (200, b'data: {"choices": [{}], "usage": {"prompt_tokens": 9}}\n\ndata: [DONE]\n\n',
         "counts 9 tokens of a prompt of 8 token ids"),
    ],
)  # fmt: skip
def test_servers_that_take_no_ids_are_refused(first: int, said: bytes, sentence: str) -> None:
    with serving(fake(), first=(9, first, {}), said=said) as (url, heard):
        ended = CliRunner().invoke(app, ["probe", url])
    assert ended.exit_code == 2
    assert sentence in ended.stderr
    assert len(heard) == 1


def test_the_rule_is_found_no_key_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS[0], KEY)
    page = tmp_path / "page.html"
    with serving(fake()) as (url, heard):
        words = ["probe", url, "--metrics", f"{url}/metrics", "--html", str(page), "--json"]
        ended = CliRunner().invoke(app, [*words, "--seed", "1", "--tokens", "600K"])
    assert ended.exit_code == 0, ended.output
    document = json.loads(ended.stdout)
    told = {each["question"]: each["value"] for each in document["conclusions"]}
    assert (told["step"], told["smallest prefix"]) == (128, 129)
    assert document["spent"]["tokens"] <= 600 * 1024
    assert "at most 614,400 tokens in 300 s" in ended.stderr
    assert {key for _, _, key in heard} == {f"Bearer {KEY}"}
    assert KEY not in ended.output + page.read_text("utf-8")
    assert "hits grow by 128 tokens" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("about", "code", "sentences"),
    [
        ({"dies_at": 80}, 5, ("hits grow by 128 tokens", "undecidable",
                              "the server stopped answering: 127.0.0.1")),
        ({"finds": False}, 1, ("0 % of a prompt hits",)),
        (None, 5, ("error: 127.0.0.1:1 does not answer (Connection refused)",)),
    ],
)  # fmt: skip
def test_a_fault_or_a_server_that_dies_has_its_exit_code(
    about: dict[str, Any] | None, code: int, sentences: tuple[str, ...]
) -> None:
    with serving(fake(**(about or {}))) as (url, _):
        asked = url if about else "127.0.0.1:1"
        ended = CliRunner().invoke(app, ["probe", asked, "--seed", "1"])
    assert ended.exit_code == code
    assert all(sentence in ended.output for sentence in sentences)


def test_a_busy_server_is_asked_again_when_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    waited, ticks = list[float](), count(100.0, 0.001)
    monkeypatch.setattr(OpenAiServer, "wait", lambda _, seconds: waited.append(seconds))
    monkeypatch.setattr(OpenAiServer, "now_s", lambda _: next(ticks) + sum(waited))
    with serving(fake(), first=(2, 429, {"retry-after": "9"})) as (url, heard):
        server = OpenAiServer(url)
        answer = server.ask(tuple(range(3000, 3300)), 1, None, 30.0)
    assert len(heard) == 4
    assert waited == [9, 9]
    assert answer.took_s < 1


@pytest.mark.parametrize(
    ("first", "code", "sentence"),
    [
        ((9, 503, {"retry-after": "600"}), 5, "busy (503), for longer than was left"),
        ((9, 308, {"location": "https://elsewhere/v1"}), 2, "(308) to https://elsewhere/v1: give"),
        ((9, 500, {}), 5, "busy"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_answer_is_a_sentence(
    first: tuple[int, int, dict[str, str]],
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is busy does not outlast the budget; no key goes elsewhere, no command is shown."""
    monkeypatch.setenv(KEYS[0], KEY)
    begun_s = time.monotonic()
    with serving(fake(), first=first) as (url, heard):
        ended = CliRunner().invoke(app, ["probe", url, "--budget", "50s"])
    assert ended.exit_code == code
    assert sentence in ended.stderr
    assert "\x1b" not in ended.output
    assert len(heard) == 1
    assert time.monotonic() - begun_s < 45


@pytest.mark.parametrize(
    ("status", "options"),
    [
        (500, {"said": f'{{"error": "Bearer {KEY}"}}'.encode()}),
        (400, {"said": KEY.upper().encode()}),
        (400, {"said": b" " * 1990 + b"sk-\x1bnot-to-\x7fbe-written"}),
        (400, {"said": rf'"{KEY.replace("-", chr(92) + "-")}"'.encode()}),
        (400, {"said": KEY.replace("-", r"\u002D").encode()}),
        (400, {"said": KEY.replace("-", "%2d").encode()}),
        (308, {"location": f"https://elsewhere/?key={KEY}"}),
        (200, {"model": f"model {KEY}"}),
        (200, {"said": f'data: {{"error": {{"message": "{KEY}"}}}}\n'.encode()}),
    ],
)
def test_a_key_that_a_server_repeats_is_not_shown(
    status: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS[0], KEY)
    headers = {"location": options.pop("location", "")}
    with serving(fake(), first=(9, status, headers), **options) as (url, _):
        ended = CliRunner().invoke(app, ["probe", url, "--json"])
    assert ended.exit_code in (2, 5)
    shown = ended.output.lower().replace("\\", "")
    assert "error: " in shown
    assert "not-to" not in shown
    assert "written" not in shown


@pytest.mark.parametrize("key", ["sk-secret\r\nX: y", "sk-\u2028secret", f"{KEY}\r\n"])
def test_a_key_that_no_header_takes_is_hidden(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS[0], key)
    if KEY in key:
        with serving(fake()) as (url, heard):
            OpenAiServer(url)
        assert {key for _, _, key in heard} == {f"Bearer {KEY}"}
        return
    ended = CliRunner().invoke(app, ["probe", "127.0.0.1:1", "--served-model-name", "m"])
    assert ended.exit_code == 2
    assert f"{KEYS[0]} holds characters" in ended.stderr
    assert "secret" not in ended.output


@contextmanager
def dripping(beginning: bytes, drop: bytes) -> Iterator[str]:
    """A server that begins an answer and goes on for ever, a little at a time."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not ended.is_set():
                    connected, _ = listening.accept()
                    with connected, suppress(OSError):
                        connected.sendall(beginning)
                        while not ended.wait(0.05):
                            connected.sendall(drop)

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            with suppress(OSError):
                socket.create_connection(listening.getsockname()).close()
            thread.join()


@pytest.mark.parametrize(
    ("beginning", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b": still there\n"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {", b" "), (b"HTTP/1.1 200 OK\r\nx-slow: ", b"y"),
    ],
)  # fmt: skip
def test_a_server_that_answers_for_ever_is_cut_off(beginning: bytes, drop: bytes) -> None:
    begun_s = time.monotonic()
    with dripping(beginning, drop) as url:
        ended = CliRunner().invoke(
            app, ["probe", url, "--budget", "1s", "--served-model-name", "m"]
        )
    assert ended.exit_code == 5
    assert "does not answer: no answer within" in ended.stderr
    assert time.monotonic() - begun_s < 60


@pytest.mark.parametrize(
    "told",
    [
        *({"tokens": ["a"], "top_logprobs": [{"a": odd}]} for odd in (None, math.nan, -math.inf)),
        *({"tokens": ["a"], "top_logprobs": odd} for odd in list[Any]((None, [None], [{}], [3]))),
        *({"tokens": odd, "top_logprobs": [{"a": -0.1}]} for odd in list[Any]((None, [], 3))),
        {"top_logprobs": [{"a": -0.1}]},
    ],
)
def test_answers_in_another_shape_have_no_log_probabilities(told: dict[str, Any]) -> None:
    heard = _Heard(0.0)
    for each in ({"tokens": ["a"], "top_logprobs": [{"a": -0.1}]}, told):
        heard.take({"choices": [{"logprobs": each}], "usage": {"prompt_tokens": 5}}, 1.0)
    assert heard.answer(urlsplit("http://host"), 2.0).likely == ()


def test_of_log_probabilities_no_more_is_kept_than_was_asked_for() -> None:
    heard = _Heard(0.0)
    for tokens in (200_000, *[500] * 20):
        likely = {"tokens": ["a"] * tokens, "top_logprobs": [{"a": -1.0}] * tokens}
        event = {"choices": [{"logprobs": likely}], "usage": {"prompt_tokens": 5}}
        heard.take_line(f"data: {json.dumps(event)}".encode())
    assert len(heard.answer(urlsplit("http://host"), 2.0).likely) == 1_500


LONG = "9" * 4_000


def test_counts_that_no_request_has_are_none() -> None:
    heard, usage = _Heard(0.0), f'{{"prompt_tokens": {LONG}}}'
    likely = f'{{"tokens": ["a"], "top_logprobs": [{{"a": {LONG}}}]}}'
    heard.take_line(f'data: {{"choices": [{{"logprobs": {likely}}}], "usage": {usage}}}'.encode())
    with pytest.raises(Unreachable, match="reports no usage"):
        heard.answer(urlsplit("http://host"), 2.0)


@pytest.mark.parametrize(
    "details",
    [{"cached_tokens": int(LONG)}, {"device": float("inf")}, {"device": -1}, {"device": "cuda:0"}],
)
def test_of_cached_tokens_only_a_number_that_can_be_is_taken(details: dict[str, Any]) -> None:
    heard = _Heard(0.0)
    usage = {"prompt_tokens": 5, "prompt_tokens_details": details}
    heard.take({"choices": [{}], "usage": usage}, 1.0)
    assert heard.answer(urlsplit("http://host"), 2.0).cached_tokens is None


@pytest.mark.parametrize("name", ["m" * 4_000, "a\u001b[31mb"])
def test_a_model_of_an_unprintable_or_endless_name_is_none(name: str) -> None:
    with serving(fake(), model=name) as (url, _):
        ended = CliRunner().invoke(app, ["probe", url])
    assert ended.exit_code == 2
    assert "names no model at /v1/models: give --served-model-name" in ended.stderr


def test_ctrl_c_prints_what_was_learned() -> None:
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit it
    server = fake()
    cache = server.cache

    def serve(prompt: Any) -> int:
        time.sleep(0.01)
        return cache(prompt)

    server.cache = serve
    try:
        with serving(server) as (url, heard):
            command = [sys.executable, "-m", "dsv4kv", "probe", url, "--seed", "1"]
            with subprocess.Popen(command, stdout=-1, stderr=-1, encoding="utf-8") as running:
                while len(heard) < 80 and running.poll() is None:
                    time.sleep(0.01)
                running.send_signal(signal.SIGINT)
                stdout, stderr = running.communicate(timeout=300)
    finally:
        signal.signal(signal.SIGINT, ignored)
    assert running.returncode == 130, stderr
    assert "hits grow by 128 tokens" in stdout
    assert "undecidable: interrupted" in stdout
    assert "Traceback" not in stderr


def test_a_page_of_metrics_that_does_not_answer_is_said_to() -> None:
    with serving(fake()) as (url, _):
        words = ["probe", url, "--metrics", "127.0.0.1:1", "--tokens", "20K"]
        ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0
    assert "--metrics 127.0.0.1:1 does not answer" in ended.stderr
    assert "is sent again hits 97.5%" in ended.stdout
