"""The client asks a server over HTTP, and the command shows what it learned."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.errors import ConfigError
from dsv4kv.probe.client import KEYS, OpenAiServer
from dsv4kv.probe.questioner import Refused, Unreachable
from tests.probe.fakes import FakeServer, Setting, open_cache

KEY = "sk-not-to-be-written"


@contextmanager
def serving(fake: FakeServer, *, takes: str = "ids") -> Iterator[tuple[str, list[Any]]]:
    """A fake server behind a socket: its address, and what was asked."""
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            metrics = "".join(f"{k} {v}\n" for k, v in fake.values.items())
            models = json.dumps({"data": [{"id": "a-model"}]})
            self._say(200, metrics if self.path == "/metrics" else models)

        def do_POST(self) -> None:
            body: dict[str, Any] = json.loads(
                self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}"
            )
            heard.append((self.path, body, self.headers.get("authorization")))
            prompt: Any = body.get("prompt", body.get("messages"))
            spelled = "ids" if isinstance(prompt, list) else "words"
            spelled = "chat" if "chat" in self.path else spelled
            if self.path in {"/flush_cache", "/reset_prefix_cache"} or spelled != takes:
                self._say(400, "not that")
                return
            if takes != "ids":
                text = prompt if takes == "words" else prompt[0]["content"]
                prompt = [sum(word.encode()) for word in text.split()]
            try:
                answer = fake.ask(tuple(prompt), body["max_tokens"], body.get("cache_salt"), 9.0)
            except Unreachable:
                self.close_connection = True
                return
            except Refused as refusal:
                self._say(400, str(refusal))
                return
            details = {"cached_tokens": answer.cached_tokens}
            usage = {"prompt_tokens": answer.prompt_tokens, "prompt_tokens_details": details}
            told = {"tokens": answer.words, "top_logprobs": answer.likely}
            chat = [
                {"token": word, "logprob": each[word],
                 "top_logprobs": [{"token": t, "logprob": p} for t, p in each.items()]}
                for word, each in zip(answer.words, answer.likely, strict=True)
            ]  # fmt: skip
            logprobs = {"content": chat} if takes == "chat" else told
            events = [
                {"choices": [{"text": "x", "logprobs": logprobs}]},
                {"choices": [], "usage": usage},
            ]
            lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            self._say(200, lines + "data: [DONE]\n\n")

        def _say(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

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


@pytest.mark.parametrize("takes", ["ids", "words", "chat"])
def test_a_prompt_is_spelled_as_the_server_takes_it(takes: str) -> None:
    with serving(fake(), takes=takes) as (url, _):
        server = OpenAiServer(f"{url}/v1/")
        assert (server.model, server.spells) == ("a-model", takes)
        prompt = tuple(range(3000, 3300))
        cold, warm = (server.ask(prompt, 2, None, 10.0) for _ in range(2))
    assert (cold.prompt_tokens, cold.cached_tokens, warm.cached_tokens) == (300, 0, 256)
    assert warm.likely == cold.likely
    assert len(cold.words) == 2
    assert 0 < warm.ttft_s < 10


def test_the_command_finds_the_rule_and_writes_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS[0], KEY)
    page = tmp_path / "page.html"
    with serving(fake()) as (url, heard):
        words = ["probe", url, "--metrics", f"{url}/metrics", "--html", str(page), "--json"]
        ended = CliRunner().invoke(app, [*words, "--seed", "1", "--tokens", "600K", "--reset"])
    assert ended.exit_code == 0, ended.output
    document = json.loads(ended.stdout)
    told = {each["question"]: each["value"] for each in document["conclusions"]}
    assert (told["step"], told["smallest prefix"]) == (128, 129)
    assert document["spent"]["tokens"] <= 600 * 1024
    assert "at most 614,400 tokens in 300 s" in ended.stderr
    assert {key for _, _, key in heard} == {f"Bearer {KEY}"}
    assert KEY not in ended.output + page.read_text()
    assert "hits grow by 128 tokens" in page.read_text()


def test_a_server_that_dies_ends_with_a_sentence_and_what_was_learned() -> None:
    with serving(fake(dies_at=60)) as (url, _):
        ended = CliRunner().invoke(app, ["probe", url, "--seed", "1"])
    assert ended.exit_code == 5
    assert "hits grow by 128 tokens" in ended.stdout
    assert "the server stopped answering: 127.0.0.1" in ended.stdout
    assert "undecidable" in ended.stdout


def test_a_fault_ends_with_1() -> None:
    with serving(fake(finds=False)) as (url, _):
        ended = CliRunner().invoke(app, ["probe", url, "--seed", "1"])
    assert ended.exit_code == 1
    assert "0 % of a prompt hits" in ended.stdout


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://user:secret@host", "http://h:x"])
def test_no_address_of_a_server_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError, match="no address of a server") as refused:
        OpenAiServer(url)
    assert "secret" not in str(refused.value)


def test_nobody_there_is_a_sentence() -> None:
    ended = CliRunner().invoke(app, ["probe", "127.0.0.1:1"])
    assert ended.exit_code == 5
    assert "error: 127.0.0.1:1 does not answer" in ended.stderr
