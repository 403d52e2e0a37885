"""A server of OpenAI's completions, whose prompts are token ids.

The key of the API comes from the environment and goes into one header; nothing writes it down,
even where a server's answer quotes it.
"""

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

from pydantic_core import from_json

from dsv4kv.diagnose.probe.questioner import Answer, Prompt, Refused, Spent, Unreachable
from dsv4kv.errors import ConfigError, mask_url
from dsv4kv.record.metrics import MOST_BYTES, Values, parse
from dsv4kv.record.run import HTTP, parse_url
from dsv4kv.record.usage import counts_of

if TYPE_CHECKING:
    from dsv4kv.record.run import Answer as Response

KEYS = ("DSV4KV_API_KEY", "OPENAI_API_KEY")
"""Variables of the environment that may hold the key, in order."""
_LIKELIEST = 5
_ASKED_S, _FIRST_S = 10.0, 60.0
_LINE_BYTES = 2**19  # of an event: one or a few tokens
_MOST_TOKENS = 1_000  # with log-probabilities, and no more than an event adds
_BUSY = {429, 503}
_PATIENCE_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""How long a server that is busy is left alone, each time; longer where it asks for it."""


class OpenAiServer:
    """A running server, and its clock.

    Attributes:
        model: The name that it is asked for.
        tokens: Tokens spent on finding out that it takes prompts as token ids.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        metrics: str | None = None,
        *,
        most_s: float = 300.0,
    ) -> None:
        """Connect, and make sure that the server takes prompts as token ids.

        ``most_s``: after this time every connection is cut. Raises ``ConfigError`` for no address
        of a server, one that takes no such prompts, or a key that no header takes, and
        ``Unreachable``.
        """
        self._ends_s = self.now_s() + most_s
        self._at, self._metrics = _address(url), _address(metrics) if metrics else None
        self._key = _key()
        self.model = model or self._first_model()
        self.tokens = self._try_ids()

    def ask(self, prompt: Prompt, outputs: int, salt: str | None, limit_s: float) -> Answer:
        """The answer to a prompt; with more than one output token it has log-probabilities.

        ``salt`` keeps it apart from equal prompts.

        Raises ``Unreachable`` for no answer or a broken one, ``Refused``, and ``Spent`` where
        there is none within ``limit_s``.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": outputs,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= {"logprobs": _LIKELIEST} if outputs > 1 else {}
        body |= {"cache_salt": salt} if salt else {}
        ends_s = min(self.now_s() + limit_s, self._ends_s)
        left_s = ends_s - self.now_s()
        late = Spent(f"no answer within the {left_s:,.0f} s that were left")
        for patience_s in (*_PATIENCE_S, None):
            begun_s = self.now_s()
            heard = _Heard(begun_s, self.now_s)
            try:
                response = self._asked(
                    "/v1/completions", json.dumps(body), ends_s - begun_s, heard.take_line
                )
            except TimeoutError:
                raise late from None
            except OSError as error:
                raise Unreachable(_gone(self._at, error)) from None
            if response.status == 200:
                return heard.answer(self._at, self.now_s())
            if response.status not in _BUSY or patience_s is None:
                raise _refusal(response)
            asked = response.headers.get("retry-after") or ""
            asked_s = float(asked) if asked.isascii() and asked.isdigit() else 0.0
            wait_s = max(patience_s, asked_s)
            if wait_s >= ends_s - self.now_s():
                raise Spent(f"the server is busy ({response.status}), for longer than was left")
            self.wait(wait_s)
        raise AssertionError  # patience has no end

    def counters(self) -> tuple[Values, bool] | None:
        """Its counters, and whether they speak of drafts; None where it has no page of them."""
        if self._metrics is None:
            return None
        from dsv4kv.record.run import ask

        page = self._metrics._replace(path=self._metrics.path or "/metrics").geturl()
        limit_s = min(_ASKED_S, self._ends_s - self.now_s())
        with suppress(OSError):
            response = ask(page, limit_s, most_bytes=MOST_BYTES)
            text = response.content.decode("utf-8", "replace")
            if response.status == 200 and response.is_whole:
                return parse(text)[0], "spec_decode" in text or "spec_accept" in text
        return None

    def now_s(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def _asked(
        self,
        path: str,
        body: str | None = None,
        limit_s: float = _ASKED_S,
        take: Callable[[bytes], object] | None = None,
    ) -> "Response":
        from dsv4kv.record.run import ask

        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        url = self._at._replace(path=self._at.path + path).geturl()
        limit_s = min(limit_s, self._ends_s - self.now_s())
        sent = None if body is None else body.encode()
        return ask(url, limit_s, body=sent, headers=headers, take=take)

    def _first_model(self) -> str:
        try:
            response = self._asked("/v1/models")
            if response.status == 200:
                name = str(from_json(response.content)["data"][0]["id"])
                if _plain(name) == name:  # what is sent is shown, too
                    return name
        except OSError as error:
            raise Unreachable(_gone(self._at, error)) from None
        except (ValueError, LookupError, TypeError):
            pass
        raise ConfigError(
            f"{self._at.netloc} names no model at /v1/models: give --model NAME, and a key in "
            f"{KEYS[0]} if it wants one."
        )

    def _try_ids(self) -> int:
        """Ask one prompt of token ids; return the tokens that it took."""
        prompt = tuple(range(2000, 2008))
        try:
            answer = self.ask(prompt, 1, None, _FIRST_S)
        except Refused as refusal:
            raise ConfigError(
                f"{self._at.netloc} takes no completions of token ids: {refusal}. Ask vLLM or "
                "SGLang itself, not a gateway."
            ) from None
        except Spent as spent:
            raise Unreachable(f"{self._at.netloc} does not answer: {spent}") from None
        if answer.prompt_tokens != len(prompt):
            raise ConfigError(
                f"{self._at.netloc} counts {answer.prompt_tokens} tokens of a prompt of "
                f"{len(prompt)} token ids: what hits cannot be known."
            )
        return answer.prompt_tokens + 1


class _Heard:
    """A streamed answer as it comes."""

    def __init__(self, begun_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._begun_s, self._first_s, self._now_s = begun_s, 0.0, now_s
        self._words: list[str] = []
        self._likely: list[Mapping[str, float]] = []
        self._counts: Mapping[str, Any] = {}
        self._is_odd = False
        self._error = ", or reports no usage in streams"

    def take_line(self, line: bytes) -> bool:
        """Of a stream of events (``data: {…}``); whether it was the last."""
        data = line.strip().removeprefix(b"data:").strip()
        if data.startswith(b"{") and len(data) <= _LINE_BYTES:
            with suppress(ValueError):
                self.take(from_json(data), self._now_s())
        return data == b"[DONE]"

    def take(self, event: Mapping[str, Any], now_s: float) -> None:
        if isinstance(event.get("error"), dict):
            self._error = f": {_plain(str(event['error'].get('message')))}"
        if isinstance(event.get("usage"), dict):
            with suppress(ValueError):
                self._counts = counts_of(event["usage"])
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            self._first_s = self._first_s or now_s - self._begun_s
            logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
            if isinstance(logprobs, dict):
                try:
                    self._take_likely(logprobs)
                except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
                    self._is_odd = True  # not as agreed

    def _take_likely(self, logprobs: Mapping[str, Any]) -> None:
        if len(self._words) > _MOST_TOKENS:
            return
        words = [str(word) for word in logprobs.get("tokens") or []]
        likely = [
            {str(word): float(value) for word, value in each.items()}
            for each in logprobs.get("top_logprobs") or []
        ]
        if len(words) != len(likely) or not all(likely):
            raise ValueError("no log-probabilities of every token")
        if not all(math.isfinite(value) for each in likely for value in each.values()):
            raise ValueError("no logarithms of probabilities")
        self._likely += likely
        self._words += words

    def answer(self, at: SplitResult, now_s: float) -> Answer:
        """The whole answer; raises ``Unreachable`` for one without its count of tokens."""
        counts = self._counts
        if "input_tokens" not in counts or not self._first_s:
            raise Unreachable(f"{at.netloc} broke off an answer{self._error}")
        return Answer(
            counts["input_tokens"],
            counts.get("cached_tokens"),
            self._first_s,
            tuple(self._words),
            () if self._is_odd else tuple(self._likely),
            counts.get("cached_by", {}),
            now_s - self._begun_s,
        )


def _address(url: str) -> SplitResult:
    sentence = (
        f"{mask_url(url)!r} is no address of a server: give http://HOST:PORT, and a key "
        f"in {KEYS[0]}."
    )
    parts = parse_url(url if "://" in url else f"http://{url}", HTTP, sentence)
    if "@" in parts.netloc:
        raise ConfigError(sentence)
    path = parts.path.rstrip("/")
    return parts._replace(path=path.removesuffix("/v1"))


def _key() -> str:
    keys = {name: os.environ.get(name, "").strip() for name in KEYS}
    name, key = next((each for each in keys.items() if each[1]), (KEYS[0], ""))
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{name} holds characters that no header takes: set another.")
    return key


def _refusal(response: "Response") -> Exception:
    said = _plain(response.content.decode("utf-8", "replace"))
    if response.status in {401, 403}:
        return ConfigError(f"the server wants another key: set {KEYS[0]} ({response.status}).")
    if 300 <= response.status < 400:
        there = response.headers.get("location") or "an address it does not name"
        return ConfigError(
            f"the server sends requests on ({response.status}) to {mask_url(_plain(there))}: give "
            "that one."
        )
    if 400 <= response.status < 500:
        return Refused(f"the server refused a prompt ({response.status}: {said})")
    return Unreachable(f"the server answered {response.status}: {said}")


def _plain(text: str) -> str:
    """What a server said, on one line, without commands to a terminal and without the key."""
    line = "".join(each for each in " ".join(text.split()) if each.isprintable())
    return _hide_key(line)[:200]


def _hide_key(text: str) -> str:
    """The text with ``***`` for the key, in any case and with the escapes of JSON and of URLs."""
    spelled = (rf"(?:{re.escape(one)}|u00{ord(one):02x}|%{ord(one):02x})" for one in _key())
    key = r"\\*".join(spelled)
    return re.sub(key, "***", text, flags=re.IGNORECASE) if key else text


def _gone(at: SplitResult, error: Exception) -> str:
    return f"{at.netloc} does not answer ({_plain(str(error)) or type(error).__name__})"
