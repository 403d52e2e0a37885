"""A data set of conversations as a trace: a request for every answer, with ids of its blocks.

    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"prompt": "…", "completion": "…"}

JSON lines or one JSON array, plain or gzip; what does not begin like one is text, every line of it
a prompt. Memory is one record.

A prompt is the messages before an answer, rendered by the chat template and tokenized, as a server
gets them, so shared ids are what a server could reuse. Ids are made by ``Veil``: neither text nor
tokens are written.
"""

import heapq
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, NamedTuple

import numpy as np

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.files import read_document, whole_text
from dsv4kv.processes import map_parallel
from dsv4kv.record import GRAIN_TOKENS, ROOT, Veil, chained
from dsv4kv.record.templates import Message, confined, load_template, load_tokens
from dsv4kv.traces import files as tf
from dsv4kv.traces.files import Defect
from dsv4kv.traces.request import Request

ASSISTANT = "assistant"
_ROLES = ("system", "developer", "user", ASSISTANT, "tool", "function")
_SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", ASSISTANT), ASSISTANT),
    **dict.fromkeys(("tool", "function_response", "observation"), "tool"),
    "system": "system",
}
"""Names of who speaks in ShareGPT's conversations, by role."""
_MESSAGES = ("messages", "conversations", "conversation")
_PROMPTS = ("prompt", "text")
_ANSWERS = ("completion", "response", "output")


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that cannot be taken."""

    place: str  # ``file:line``
    why: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One record."""

    place: str  # ``file:line``
    messages: Sequence[Message]  # by role; empty where the record is a single prompt
    # When each message was sent, as far as it is known; of a prompt one time
    sent_s: Sequence[float | None]
    prompt: str = ""  # text that is continued as it is
    answer: str | None = None  # what followed on the prompt, if that is known
    tools: Sequence[Any] | None = None  # what the messages may call, for the template
    options: Mapping[str, Any] = field(default_factory=dict)  # of the template, for these messages


Sent = Callable[[Mapping[str, Any]], float | None]
"""When a record or a message was sent, in s, where that is known."""


def read_dialogues(
    path: Path,
    *,
    text: bool = False,
    time: str | None = None,
    time_unit: str = "s",
    skip: bool = False,
    watch: tf.Watch | None = None,
) -> Iterator[Dialogue | Refused]:
    """Yield the records of a data set; raises ``TraceError``.

    ``text``: every line is a prompt, whatever it looks like. ``time``: field of records, and of
    messages that have it, that says when they were sent, an ISO 8601 time or a number in
    ``time_unit``. ``skip``: yield records that cannot be read as ``Refused`` instead of ending.
    """
    sent: Sent = partial(_time, time, time_unit) if time else lambda _: None
    with tf.open_trace(path, watch) as lines:
        if not lines.peek():
            raise Defect("the file is empty")
        first = lines.peek().lstrip()
        rows: Iterator[str | dict[str, Any]] = iter(lines)
        if text or not first.startswith(("{", "[")):
            rows = ({_PROMPTS[0]: line.rstrip("\r\n")} for line in lines)
        elif first.startswith("["):
            rows = tf.json_array(lines)
        for row in rows:
            place = f"{path}:{lines.number}"
            try:
                record = tf.parse_object(row) if isinstance(row, str) else row
                yield _dialogue(place, record, sent)
            except Defect as defect:
                if not skip:
                    raise
                yield Refused(place, str(defect))


def _dialogue(place: str, record: dict[str, Any], sent: Sent) -> Dialogue:
    body = record.get("body", record)  # of OpenAI's batches
    if not isinstance(body, dict):
        raise Defect(f"body is a JSON {type(body).__name__}, expected an object")
    name = next((name for name in (*_MESSAGES, *_PROMPTS) if name in body), None)
    if name is None:
        raise Defect(f"none of {', '.join((*_MESSAGES, *_PROMPTS))} is in the record")
    sent_s = sent(record)
    if name in _PROMPTS:
        answer = next((record[name] for name in _ANSWERS if record.get(name)), None)
        given = {name: body[name]} | ({} if answer is None else {"answer": answer})
        if wrong := next((name for name, text in given.items() if type(text) is not str), None):
            raise Defect(f"{wrong} is {shortened(given[wrong])}, expected a text")
        return Dialogue(place, (), (sent_s,), body[name], answer)
    turns = body[name]
    if not isinstance(turns, list) or not turns:
        raise Defect(f"{name} is {shortened(turns)}, expected a list of messages, at least one")
    own = body.get("chat_template_kwargs") or {}
    if not isinstance(own, dict):
        raise Defect(f"chat_template_kwargs is {shortened(own)}, expected an object")
    messages = [_message(number, turn) for number, turn in enumerate(turns, 1)]
    first_s, *later = map(sent, turns)
    times = [sent_s if first_s is None else first_s, *later]
    return Dialogue(place, messages, times, tools=body.get("tools"), options=own)


def _message(number: int, turn: Any) -> Message:
    if not isinstance(turn, dict):
        raise Defect(f"message {number} is {shortened(turn)}, expected an object")
    if "from" in turn:
        speaker = turn["from"]
        known = _SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else speaker
        turn = {"role": known, "content": turn.get("value")}
    role = turn.get("role")
    if role not in _ROLES:
        raise Defect(
            f"message {number} is by {shortened(role)}, expected one of {', '.join(_ROLES)} or, "
            f"as ShareGPT names them, {', '.join(_SPEAKERS)}"
        )
    content = _text(number, turn.get("content"))
    if content is None and not turn.get("tool_calls"):
        raise Defect(f"message {number} has no content")
    known = turn | {"content": content}
    # of what is null a template knows less than of what is not there
    return {name: value for name, value in known.items() if value is not None}


def _text(number: int, content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise Defect(f"message {number} has {shortened(part)}: only text can be tokenized")
        texts.append(text)
    return "\n".join(texts)


def _time(name: str, unit: str, record: Mapping[str, Any]) -> float | None:
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        return tf.read_time(record, name, unit)
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise Defect(
            f"{name} is {shortened(value)}, expected an ISO 8601 time or a number"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


_BATCH = 32  # records that a process is given at once
MOST_CHARACTERS = 2**24  # of a text; 200 bytes each while it is tokenized, which cannot be refused
_MOST_RENDERED = 2**22  # messages of a conversation's prompts together: 2,900 turns have less
_LEAST_SALT_BYTES, _MOST_SALT_BYTES = 16, 64  # the most that BLAKE2b takes


def read_salt(path: Path | None) -> bytes:
    """A secret that is kept, or a new one; raises ``ConfigError``."""
    if path is None:
        return secrets.token_bytes(32)
    try:
        salt = read_document(path)
    except OSError as error:
        raise ConfigError(f"--salt {path}: cannot be read ({error.strerror}).") from None
    if not _LEAST_SALT_BYTES <= len(salt) <= _MOST_SALT_BYTES:
        raise ConfigError(
            f"--salt {path}: it has {len(salt):,} bytes, give {_LEAST_SALT_BYTES} to "
            f"{_MOST_SALT_BYTES}: a recording's salt, or random ones."
        )
    return salt


class Turn(NamedTuple):
    """A prompt and what was answered."""

    sent_s: float | None  # None where it is not known
    input_tokens: int
    output_tokens: int | None
    ids: tuple[int, ...]  # of its blocks


Turns = list[Turn] | Refused


class Job(NamedTuple):
    """How text becomes ids."""

    tokenizer: Path  # folder with a ``tokenizer.json``, or such a file
    salt: bytes  # key of the ids
    template: str | None = None  # chat template, as ``load_template`` takes it
    options: Mapping[str, Any] = {}  # of the template
    block_tokens: int = GRAIN_TOKENS  # tokens of an id


class Conversations:
    """Makes turns of conversations."""

    def __init__(self, job: Job) -> None:
        """Load the tokenizer and its template; raises ``ConfigError``."""
        folder = job.tokenizer if job.tokenizer.is_dir() else job.tokenizer.parent
        self._folder = folder
        ask = confined("the tokenizer", load_tokens, job.tokenizer)
        try:
            self._tokens = Incremental(partial(ask, "encode"), ask("splits"))
        except Defect as defect:
            raise ConfigError(f"--tokenizer {job.tokenizer}: cannot be used: {defect}.") from None
        self._render = load_template(folder, job.template, job.options)
        self._veil, self._block_tokens = Veil(job.salt), job.block_tokens
        self._last: tuple[list[int], tuple[int, ...]] = [], ()  # prompt and its ids

    def turns(self, dialogue: Dialogue | Refused) -> Turns:
        """Return the requests of a record, or why there are none."""
        if isinstance(dialogue, Refused):
            return dialogue
        try:
            if dialogue.messages:
                return list(self._chat(dialogue))
            tokens = self._tokens.encode(dialogue.prompt, special=True)
            return [self._turn(dialogue.sent_s[0], tokens, dialogue.answer)]
        except Defect as defect:
            return Refused(dialogue.place, str(defect))

    def _chat(self, dialogue: Dialogue) -> Iterator[Turn]:
        if self._render is None:
            encoders = sorted(self._folder.glob("encoding/encoding*.py"))
            hint = f", such as {encoders[0]}, which is run" if encoders else ""
            raise ConfigError(
                f"{self._folder}: the tokenizer has no chat template: give one, --chat-template "
                f"FILE{hint}."
            )
        messages = dialogue.messages
        is_answer = [message["role"] == ASSISTANT for message in messages]
        first = is_answer.index(False) if False in is_answer else len(messages)
        answers = [place for place, is_one in enumerate(is_answer) if is_one and place > first]
        if not is_answer[-1]:
            answers.append(len(messages))  # not yet answered
        if not answers:
            raise Defect("all messages are the assistant's: there is no prompt")
        if sum(answers) > _MOST_RENDERED:
            raise Defect(
                f"its {len(answers):,} prompts have {sum(answers):,} messages in all, more than "
                f"the {_MOST_RENDERED:,} that are rendered of one conversation"
            )
        for place in answers:
            before = messages[:place], dialogue.tools, dialogue.options
            text = self._render(*before, first=place == answers[0])
            answer = None
            if place < len(messages):  # a model's output, tool calls as JSON
                said, calls = messages[place], messages[place].get("tool_calls")
                parts = [said.get("reasoning_content"), said.get("content")]
                parts += [calls and json.dumps(calls)]
                answer = "".join(part for part in parts if isinstance(part, str))
            yield self._turn(dialogue.sent_s[place - 1], self._tokens.encode(text), answer)

    def _turn(self, sent_s: float | None, tokens: list[int], answer: str | None) -> Turn:
        if not tokens:
            raise Defect("the prompt has no tokens")
        size, (before, ids) = self._block_tokens, self._last
        full = len(before) // size * size
        kept = ids[: full // size] if tokens[:full] == before[:full] else ()  # the usual turn
        rest = tokens[len(tokens) // size * size :]
        contents = self._veil.content(tokens[len(kept) * size :], size)
        contents += self._veil.content(rest, len(rest)) if rest else []
        ids = (*kept, *chained(contents, kept[-1] if kept else ROOT))
        self._last = tokens, ids
        output = None if answer is None else self._tokens.answer(answer)
        return Turn(sent_s, len(tokens), output, ids)


class Incremental:
    """Tokenizes prompts and answers; parts of the last prompt are not tokenized again.

    Tokens added to the vocabulary split a text before anything else, so the parts between them can
    be tokenized separately.
    """

    def __init__(self, encode: Callable[..., list[list[int]]], splits: Sequence[str]) -> None:
        self._encode, self._passes = encode, list(map(re.compile, splits))
        self._known: dict[str, list[int]] = {}
        self._text, self._count = "", 0

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Tokens of a prompt; ``special``: add the special tokens, which are else in the text."""
        self._text = _bounded(text)
        tokens = self._encode([self._text], True)[0] if special else self._cut(self._text)
        self._count = len(tokens)
        return tokens

    def answer(self, text: str) -> int:
        """Number of tokens that a text adds to the last prompt."""
        text = _bounded(text)
        if len(self._parts(self._text)) < 2:
            return len(self._encode([text])[0])
        return max(0, len(self._cut(self._text + text)) - self._count)

    def _cut(self, text: str) -> list[int]:
        parts = self._parts(text)
        new = list(dict.fromkeys(part for part in parts if part not in self._known))
        known = self._known | dict(zip(new, self._encode(new) if new else [], strict=True))
        self._known = {part: known[part] for part in parts}
        return [token for part in parts for token in known[part]]

    def _parts(self, text: str) -> list[str]:
        parts = [("", text)]
        for pattern in self._passes:
            cut = list[tuple[str, str]]()
            for token, after in parts:
                begin, *rest = pattern.split(after)
                cut += [(token, begin), *zip(rest[::2], rest[1::2], strict=True)]
            parts = cut
        return [token + after for token, after in parts if token or after]


def _bounded(text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise Defect(
            f"a prompt or an answer has {len(text):,} characters, more than the "
            f"{MOST_CHARACTERS:,} that a text may have"
        )
    return whole_text(text)


def tokenize(
    dialogues: Iterable[Dialogue | Refused], job: Job, processes: int = 1
) -> Iterator[Turns]:
    """Return the turns of every record, in order; raises ``ConfigError``."""
    here = Conversations(job)  # errors show before processes are started
    if processes == 1:
        yield from map(here.turns, dialogues)
        return
    del here
    rows = iter(dialogues)
    batches = iter(lambda: list(islice(rows, _BATCH)), [])
    for _, turns in map_parallel(partial(_work, job), batches, processes, in_order=True):
        yield from turns


_here: list[tuple[Job, Conversations]] = []
"""The conversations of a worker process."""


def _work(job: Job, dialogues: list[Dialogue | Refused]) -> list[Turns]:
    if not _here or _here[0][0] != job:
        _here[:] = [(job, Conversations(job))]
    return list(map(_here[0][1].turns, dialogues))


@dataclass
class Counts:
    """Counts of a data set."""

    first: Refused | None = None  # skipped record
    refused: int = 0  # skipped records
    unanswered: int = 0  # requests without a known answer
    conversations: int = 0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


def arrange(
    conversations: Iterable[Turns],
    counts: Counts,
    *,
    rate: float = 1.0,
    gap_s: float = 20.0,
    seed: int = 0,
    block_tokens: int = GRAIN_TOKENS,
    output_tokens: int = 0,
    skip: bool = False,
) -> Iterator[Request]:
    """Return requests in order of arrival, from 0 s; memory is the conversations under way.

    Without times, ``rate`` conversations begin in a second (Poisson), and turns ``gap_s`` apart on
    average (exponential). ``output_tokens`` are of requests without a known answer, ``counts`` is
    added to; ``skip``: skip refused records, which else raise ``TraceError``, as conversations in
    another order do.
    """
    begins, gaps = np.random.default_rng(seed).spawn(2)
    waiting: list[tuple[float, int, Request]] = []
    places, begin_s, origin_s = count(), 0.0, None
    for turns in conversations:
        if isinstance(turns, Refused):
            if not skip:
                raise TraceError(f"{turns.place}: {turns.why}.")
            counts.refused, counts.first = counts.refused + 1, counts.first or turns
            continue
        drawn_s = begin_s + begins.exponential(1 / rate)
        at_s = drawn_s if turns[0].sent_s is None else turns[0].sent_s
        origin_s = at_s if origin_s is None else origin_s
        if at_s < begin_s and counts.conversations:
            raise TraceError(
                f"conversation {counts.conversations + 1} begins {begin_s - at_s:,.3f} s before "
                "the one above it: sort the data by time."
            )
        begin_s = at_s
        while waiting and waiting[0][0] < begin_s:
            yield heapq.heappop(waiting)[2]
        for number, turn in enumerate(turns):
            if number:
                after_s = at_s + gaps.exponential(gap_s)
                at_s = after_s if turn.sent_s is None else max(at_s, turn.sent_s)
            request = Request(
                arrival_s=round(at_s - origin_s, 6),
                input_tokens=turn.input_tokens,
                output_tokens=output_tokens if turn.output_tokens is None else turn.output_tokens,
                prefix_hashes=turn.ids,
                hash_block_tokens=block_tokens,
                session=counts.conversations,
            )
            heapq.heappush(waiting, (at_s, next(places), request))
            counts.requests += 1
            counts.input_tokens += request.input_tokens
            counts.output_tokens += request.output_tokens
            counts.unanswered += turn.output_tokens is None
        counts.conversations += 1
    while waiting:
        yield heapq.heappop(waiting)[2]


def describe(counts: Counts, output_tokens: int) -> Iterator[str]:
    """Sentences about the trace."""
    yield (
        f"{counts.conversations:,} conversations, {counts.requests:,} requests, "
        f"{counts.input_tokens:,} prompt tokens, {counts.output_tokens:,} of answers"
    )
    if counts.unanswered:
        yield (
            f"{counts.unanswered:,} requests have no answer in the data: {output_tokens:,} output "
            "tokens are taken (--output-tokens)"
        )
    if counts.first:
        yield (
            f"{counts.refused:,} records skipped, the first {counts.first.place}: "
            f"{counts.first.why}"
        )
