"""Conversations of a data set: ShareGPT's, OpenAI's, single prompts, lines of text.

    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"prompt": "…", "completion": "…"}

JSON lines or one JSON array, plain or gzip; what does not begin like one is text, every line of it
a prompt. Memory is one record.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from dsv4kv.traces import files as tf

Message = dict[str, Any]

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
class DataOptions:
    """How a data set is read."""

    text: bool = False  # every line is a prompt, whatever it looks like
    # Field of a record, and of messages that have it, that says when it was sent; an ISO 8601 time
    # or a number. None where there is none
    time: str | None = None
    time_unit: str = "s"  # unit of numbers
    # Give records that cannot be read as ``Refused`` instead of ending with the first
    skip: bool = False
    watch: tf.Watch | None = None  # hears how many bytes of how many have been read


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that cannot be taken: where it is, and why."""

    place: str
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


def read_dialogues(
    path: Path, options: DataOptions = DataOptions()
) -> Iterator[Dialogue | Refused]:
    """Yield the records of a data set; raises ``TraceError``."""
    with tf.open_trace(path, watch=options.watch) as lines:
        if not lines.peek():
            raise tf.Defect("the file is empty")
        first = lines.peek().lstrip()
        rows: Iterator[str | dict[str, Any]] = iter(lines)
        if options.text or not first.startswith(("{", "[")):
            rows = ({_PROMPTS[0]: line.rstrip("\r\n")} for line in lines)
        elif first.startswith("["):
            rows = tf.json_array(lines)
        for row in rows:
            place = f"{path}:{lines.number}"
            try:
                record = tf.parse_object(row) if isinstance(row, str) else row
                yield _dialogue(place, record, options)
            except tf.Defect as defect:
                if not options.skip:
                    raise
                yield Refused(place, str(defect))


def _dialogue(place: str, record: dict[str, Any], options: DataOptions) -> Dialogue:
    body = record.get("body", record)  # of OpenAI's batches
    if not isinstance(body, dict):
        raise tf.Defect(f"body is a JSON {type(body).__name__}, expected an object")
    name = next((name for name in (*_MESSAGES, *_PROMPTS) if name in body), None)
    if name is None:
        raise tf.Defect(f"none of {', '.join((*_MESSAGES, *_PROMPTS))} is in the record")
    sent_s = None if options.time is None else _time(record, options)
    if name in _PROMPTS:
        answer = next((record[name] for name in _ANSWERS if record.get(name)), None)
        given = {name: body[name]} | ({} if answer is None else {"answer": answer})
        if wrong := next((name for name, text in given.items() if type(text) is not str), None):
            raise tf.Defect(f"{wrong} is {shortened(given[wrong])}, expected a text")
        return Dialogue(place, (), (sent_s,), body[name], answer)
    turns = body[name]
    if not isinstance(turns, list) or not turns:
        raise tf.Defect(f"{name} is {shortened(turns)}, expected a list of messages, at least one")
    own = body.get("chat_template_kwargs") or {}
    if not isinstance(own, dict):
        raise tf.Defect(f"chat_template_kwargs is {shortened(own)}, expected an object")
    messages = [_message(number, turn) for number, turn in enumerate(turns, 1)]
    known = repeat(None) if options.time is None else (_time(turn, options) for turn in turns)
    times = list(zip(turns, known, strict=False))
    return Dialogue(
        place,
        messages,
        [sent_s if not number and at is None else at for number, (_, at) in enumerate(times)],
        tools=body.get("tools"),
        options=own,
    )


def _message(number: int, turn: Any) -> Message:
    if not isinstance(turn, dict):
        raise tf.Defect(f"message {number} is {shortened(turn)}, expected an object")
    if "from" in turn:
        speaker = turn["from"]
        known = _SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else speaker
        turn = {"role": known, "content": turn.get("value")}
    role = turn.get("role")
    if role not in _ROLES:
        raise tf.Defect(
            f"message {number} is by {shortened(role)}, expected one of {', '.join(_ROLES)} or, "
            f"as ShareGPT names them, {', '.join(_SPEAKERS)}"
        )
    content = _text(number, turn.get("content"))
    if content is None and not turn.get("tool_calls"):
        raise tf.Defect(f"message {number} has no content")
    # of what is null a template knows less than of what is not there
    return {
        name: value for name, value in (turn | {"content": content}).items() if value is not None
    }


def _text(number: int, content: Any) -> str | None:
    """The text of a message; of several parts, one line after the other."""
    if content is None or isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise tf.Defect(f"message {number} has {shortened(part)}: only text can be tokenized")
        texts.append(text)
    return "\n".join(texts)


def _time(record: Mapping[str, Any], options: DataOptions) -> float | None:
    assert options.time is not None
    value = record.get(options.time)
    if value is None:
        return None
    if not isinstance(value, str):
        return tf.read_time(record, options.time, options.time_unit)
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise tf.Defect(
            f"{options.time} is {shortened(value)}, expected an ISO 8601 time or a number"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
