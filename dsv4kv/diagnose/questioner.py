"""Asks a server of OpenAI's completions prompts of token ids that it has never seen.

The key of the API comes from the environment and goes into one header; nothing writes it down,
even where a server's answer quotes it.
"""

import json
import math
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult

from pydantic_core import from_json

from dsv4kv.errors import ConfigError, StoreUnavailable, mask_url
from dsv4kv.record.http import Answer as Response
from dsv4kv.record.http import ask
from dsv4kv.record.metrics import MOST_BYTES, Counted, Values, parse
from dsv4kv.record.run import HTTP, parse_url
from dsv4kv.record.usage import counts_of

Prompt = tuple[int, ...]  # token ids
KEYS = ("DSV4KV_API_KEY", "OPENAI_API_KEY")  # variables that may hold the key, in order
_LIKELIEST = 5
_ASKED_S, _FIRST_S = 10.0, 60.0
_LINE_BYTES = 2**19  # of an event: one or a few tokens
_MOST_TOKENS = 1_000  # with log-probabilities, and no more than an event adds
_BUSY = {429, 503}
_PATIENCE_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # that a busy server is left alone, if it asks no more
_FIRST_ID, _IDS = 1024, 2**14
"""Ordinary tokens: of every vocabulary, and behind the special ones that come first."""
_ENDINGS = 8  # ends that differ from one another at their first token


class Unreachable(StoreUnavailable):
    """A server that does not answer, or no longer."""


class Refused(Exception):
    """A prompt that a server does not take: too long, or a field that it does not know."""


class Spent(Exception):
    """What is to be asked next would go beyond the budget."""


@dataclass(frozen=True)
class Answer:
    """What a server said to one prompt."""

    prompt_tokens: int  # as it counts them
    cached_tokens: int | None  # of these, found in its cache; None where it does not report that
    ttft_s: float  # until the first token came
    words: tuple[str, ...] = ()  # the tokens of its answer
    likely: tuple[Mapping[str, float], ...] = ()  # log-probabilities of the likeliest, in nats
    cached_by: Mapping[str, int] = field(default_factory=dict)  # by tier, where it reports that
    took_s: float = 0.0  # from when it was asked, and not too busy to answer, to the end


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

        ``salt`` keeps it apart from equal prompts. Raises ``Unreachable`` for no answer or a
        broken one, ``Refused``, and ``Spent`` where there is none within ``limit_s``.
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
        left_s, patience = ends_s - self.now_s(), iter(_PATIENCE_S)
        while True:
            begun_s = self.now_s()
            heard = _Heard(begun_s, self.now_s)
            try:
                response = self._asked(
                    "/v1/completions", json.dumps(body), ends_s - begun_s, heard.take_line
                )
            except TimeoutError:
                raise Spent(f"no answer within the {left_s:,.0f} s that were left") from None
            if response.status == 200:
                return heard.answer(self._at, self.now_s())
            patience_s = next(patience, None)
            if response.status not in _BUSY or patience_s is None:
                raise _refusal(response)
            asked = response.headers.get("retry-after") or ""
            asked_s = float(asked) if asked.isascii() and asked.isdigit() else 0.0
            wait_s = max(patience_s, asked_s)
            if wait_s >= ends_s - self.now_s():
                raise Spent(f"the server is busy ({response.status}), for longer than was left")
            self.wait(wait_s)

    def counters(self) -> tuple[Values, bool] | None:
        """Its counters, and whether they speak of drafts; None where it has no page of them."""
        if self._metrics is None:
            return None
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
    ) -> Response:
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        url = self._at._replace(path=self._at.path + path).geturl()
        limit_s = min(limit_s, self._ends_s - self.now_s())
        sent = None if body is None else body.encode()
        try:
            return ask(url, limit_s, body=sent, headers=headers, take=take)
        except OSError as error:
            if body is not None and isinstance(error, TimeoutError):
                raise
            why = _plain(str(error)) or type(error).__name__
            raise Unreachable(f"{self._at.netloc} does not answer ({why})") from None

    def _first_model(self) -> str:
        response = self._asked("/v1/models")
        with suppress(ValueError, LookupError, TypeError):
            name = str(from_json(response.content)["data"][0]["id"])
            if response.status == 200 and _plain(name) == name:  # what is sent is shown, too
                return name
        raise ConfigError(
            f"{self._at.netloc} names no model at /v1/models: give --served-model-name NAME, and "
            f"a key in {KEYS[0]} if it wants one."
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
            if isinstance(logprobs, dict) and len(self._words) <= _MOST_TOKENS:
                try:
                    self._take_likely(logprobs)
                except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
                    self._is_odd = True  # not as agreed

    def _take_likely(self, logprobs: Mapping[str, Any]) -> None:
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
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"))


def _key() -> str:
    keys = {name: os.environ.get(name, "").strip() for name in KEYS}
    name, key = next((each for each in keys.items() if each[1]), (KEYS[0], ""))
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{name} holds characters that no header takes: set another.")
    return key


def _refusal(response: Response) -> Exception:
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
    """What a server said, on one line, without commands to a terminal.

    With ``***`` for the key, in any case and with the escapes of JSON and of URLs.
    """
    line = "".join(each for each in " ".join(text.split()) if each.isprintable())
    spelled = (rf"(?:{re.escape(one)}|u00{ord(one):02x}|%{ord(one):02x})" for one in _key())
    key = r"\\*".join(spelled)
    return (re.sub(key, "***", line, flags=re.IGNORECASE) if key else line)[:200]


@dataclass
class Ledger:
    """What may be spent, and what is."""

    most_tokens: int  # of all prompts and answers
    most_s: float  # of all of it
    tokens: int = 0
    prompts: int = 0
    s_per_token: float = 0.0


class Questioner:
    """Asks within a budget of tokens and time, and keeps count.

    Attributes:
        ledger: What is spent.
        counted: Growth of the server's counters, where they are read.
        drafts: Whether its counters speak of drafts.
        restored: Tokens that it says it found beyond the GPU.
        overcounted: The first answer that has more cached tokens than there are, and how many are.
    """

    def __init__(
        self, server: OpenAiServer, ledger: Ledger, seed: int, begun_s: float | None = None
    ) -> None:
        """``begun_s``: when the budget of time began, on the server's clock; None for now."""
        self.server, self.ledger = server, ledger
        self.counted, self.drafts = Counted(), False
        self.overcounted: tuple[Answer, int] | None = None
        self.restored = 0
        self._random = random.Random(seed)
        self._begun_s = server.now_s() if begun_s is None else begun_s
        self._sample()

    def draw(self, tokens: int, ending: int = 0) -> Prompt:
        """Random tokens; of two endings the first tokens differ."""
        drawn = self._random.choices(range(_FIRST_ID, _FIRST_ID + _IDS), k=tokens)
        drawn[:1] = [each - each % _ENDINGS + ending for each in drawn[:1]]
        return tuple(drawn)

    def ask(
        self,
        prompt: Prompt,
        *,
        outputs: int = 1,
        salt: str | None = None,
        sent: int | None = None,
    ) -> Answer:
        """The answer to a prompt.

        ``sent``: how many of its tokens were asked before, where that is not all. Raises ``Spent``
        where it does not fit the budget, and as ``OpenAiServer.ask``.
        """
        ledger, tokens = self.ledger, len(prompt) + outputs
        left_s = ledger.most_s - (self.server.now_s() - self._begun_s)
        if ledger.tokens + tokens > ledger.most_tokens:
            raise Spent(f"the budget of {ledger.most_tokens:,} tokens is used up")
        if left_s <= tokens * ledger.s_per_token:
            raise Spent(f"the budget of {ledger.most_s:,.0f} s is used up")
        ledger.tokens += tokens
        ledger.prompts += 1
        answer = self.server.ask(prompt, outputs, salt, max(left_s, 0.001))
        ledger.s_per_token = max(ledger.s_per_token, answer.took_s / max(len(prompt), 512))
        self._sample()
        cached, most = answer.cached_tokens or 0, answer.prompt_tokens
        if sent is not None and cached <= most:
            most = sent
        if cached > most:
            self.overcounted = self.overcounted or (answer, most)
        self.restored += sum(answer.cached_by.get(tier, 0) for tier in ("host", "storage"))
        return answer

    def hit(self, prompt: Prompt, sent: int | None = None) -> int:
        """Tokens of a prompt that were cached; the server is known to report them."""
        return self.ask(prompt, sent=sent).cached_tokens or 0

    def _sample(self) -> None:
        sampled = self.server.counters()
        if sampled is not None:
            self.counted.add(sampled[0])
            self.drafts |= sampled[1]
