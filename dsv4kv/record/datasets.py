"""Conversations of a data set: ShareGPT's, OpenAI's, single prompts, lines of text.

    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"prompt": "…", "completion": "…"}

JSON lines or one JSON array, plain or gzip; what does not begin like one is text, every line of it
a prompt. Memory is one record.

Chat templates: messages become the text that a model is given.

A template is Jinja, rendered in a sandbox as Transformers 5.23 does
(``utils/chat_template_utils.py``), or a Python file with the function ``encode_messages`` that
DeepSeek publishes with V3.2 and V4 instead of one (``encoding/encoding_dsv4.py``).
"""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from itertools import count, repeat
from pathlib import Path
from reprlib import repr as shortened
from traceback import walk_tb
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dsv4kv.errors import ConfigError
from dsv4kv.files import read_document, read_json
from dsv4kv.processes import python, with_package
from dsv4kv.traces.files import (
    Defect,
    Watch,
    is_array,
    json_array,
    open_trace,
    parse_object,
    read_time,
)

Message = dict[str, Any]

ASSISTANT = "assistant"
RENDER_BYTES = 1 << 30  # of memory that a chat template may take for one conversation
RENDER_S = 10.0  # of processor time
_TOLD_CHARACTERS = 200  # of a template's own sentence
_PAGES = Path("/proc/self/statm")
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
    watch: Watch | None = None  # hears how many bytes of how many have been read


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
    with open_trace(path, watch=options.watch) as lines:
        if not lines.peek():
            raise Defect("the file is empty")
        first = lines.peek().lstrip()
        rows: Iterator[str | dict[str, Any]] = iter(lines)
        if options.text or not first.startswith(("{", "[")):
            rows = ({_PROMPTS[0]: line.rstrip("\r\n")} for line in lines)
        elif is_array(first):
            rows = json_array(lines)
        for row in rows:
            place = f"{path}:{lines.number}"
            try:
                record = parse_object(row) if isinstance(row, str) else row
                yield _dialogue(place, record, options)
            except Defect as defect:
                if not options.skip:
                    raise
                yield Refused(place, str(defect))


def _dialogue(place: str, record: dict[str, Any], options: DataOptions) -> Dialogue:
    body = record.get("body", record)  # of OpenAI's batches
    if not isinstance(body, dict):
        raise Defect(f"body is a JSON {type(body).__name__}, expected an object")
    name = next((name for name in (*_MESSAGES, *_PROMPTS) if name in body), None)
    if name is None:
        raise Defect(f"none of {', '.join((*_MESSAGES, *_PROMPTS))} is in the record")
    sent_s = None if options.time is None else _time(record, options)
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
            raise Defect(f"message {number} has {shortened(part)}: only text can be tokenized")
        texts.append(text)
    return "\n".join(texts)


def _time(record: Mapping[str, Any], options: DataOptions) -> float | None:
    assert options.time is not None
    value = record.get(options.time)
    if value is None:
        return None
    if not isinstance(value, str):
        return read_time(record, options.time, options.time_unit)
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise Defect(
            f"{options.time} is {shortened(value)}, expected an ISO 8601 time or a number"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


Render = Callable[[Sequence[Message], Sequence[Any] | None, Mapping[str, Any]], str]
"""Makes the text of messages, of the tools they may call and of options of their own."""

_CONFIG = "tokenizer_config.json"
_FILES = ("chat_template.jinja", "chat_template.json")
_ENCODER = "encode_messages"
_MODE = "thinking_mode"
_REASONING = ("reasoning_content", "thinking", "reasoning")


_SERVE = f"from {__name__} import serve; serve()"


class Template:
    """A chat template, which is rendered by a child process.

    Nothing else bounds the time of a loop in C, as comparing lists that hold each other has.
    """

    _child: subprocess.Popen[bytes] | None = None  # of all templates
    _numbers = count()

    def __init__(self, *given: Any) -> None:
        """Load it, as ``load_template`` does; raises ``ConfigError``."""
        self._given, self._number = given, next(self._numbers)
        self._loaded_by: object = None
        try:
            self.exists = bool(self._load())
        except Defect as defect:
            raise ConfigError(f"the chat template is broken: {defect}.") from None

    def __call__(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        own: Mapping[str, Any],
        *,
        first: bool = True,
    ) -> str:
        """The text of a prompt; ``first`` of its conversation, whose time begins."""
        self._load()
        return str(self._ask(self._number, "render", first, messages, tools, own))

    def _load(self) -> Any:
        if self._loaded_by is None or self._loaded_by is not self._child:
            found = self._ask(self._number, "load", Path.cwd(), *self._given)
            self._loaded_by = self._child
            return found
        return True

    def _ask(self, *request: Any) -> Any:
        if Template._child is None:
            Template._child = subprocess.Popen(
                python("-c", _SERVE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=with_package(os.environ),
                process_group=0,  # Ctrl-C is for us: it ends with its input
            )
        child = Template._child
        assert child.stdin is not None
        assert child.stdout is not None
        found = None
        try:
            with suppress(BrokenPipeError, EOFError):
                pickle.dump((RENDER_S, RENDER_BYTES, *request), child.stdin)
                child.stdin.flush()
                found = pickle.load(child.stdout)
        finally:
            if found is None:  # it has ended, or we were interrupted: an answer would come late
                Template._child = None
                child.kill()
                child.communicate()
        if found is None and child.returncode == -signal.SIGPROF:
            raise Defect(f"the chat template takes more than {RENDER_S:g} s for one conversation")
        if found is None:
            raise Defect(f"the chat template ended its process (code {child.returncode})")
        if isinstance(found, Exception):
            raise found
        return found


def serve() -> None:
    """Load and render templates, by requests on standard input, until that ends."""
    global RENDER_S, RENDER_BYTES
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an encoder prints
    renders: dict[int, Render | None] = {}
    with suppress(EOFError):
        while True:
            RENDER_S, RENDER_BYTES, number, *asked = pickle.load(sys.stdin.buffer)
            try:
                found = _answer(renders, number, *asked)
            except Exception as error:
                known = isinstance(error, ConfigError | Defect)
                found = error if known else RuntimeError(f"{type(error).__name__}: {error}")
            pickle.dump(found, answers)
            answers.flush()


def _answer(renders: dict[int, Render | None], number: int, what: str, *asked: Any) -> Any:
    if what == "load":
        folder, *given = asked
        os.chdir(folder)
        renders[number] = _load(*given)
        return renders[number] is not None
    first, *prompt = asked
    render = renders[number]
    assert render is not None
    if first:
        _bound_time()
    return render(*prompt)


def _bound_time() -> None:
    """The system ends the process after ``RENDER_S`` s of the processor, in any loop."""
    signal.setitimer(signal.ITIMER_PROF, RENDER_S)


def load_template(folder: Path, given: str | None, options: Mapping[str, Any]) -> Template | None:
    """The template of a tokenizer's folder, or the one given; None without; ``ConfigError``.

    ``given``: a file, of Jinja or, where it ends in ``.py``, of Python, which is run; or the name
    of one of the tokenizer's templates. ``options`` are the template's, for all messages.
    """
    template = Template(folder, given, dict(options))
    return template if template.exists else None


def _load(folder: Path, given: str | None, options: Mapping[str, Any]) -> Render | None:
    if given and given.endswith(".py"):
        return _encoder(Path(given), options)
    path = folder / _CONFIG
    config = _read(path) if path.exists() else {}
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: it is no object, so no configuration of a tokenizer.")
    named = _named(folder, config)
    if given and given in named:  # before a file that happens to be here
        named = {"default": named[given]}
    elif given and os.path.isfile(given):  # noqa: PTH113 (False for a name too long, where Path raises)
        named = {"default": _read_text(Path(given))}
    elif given:
        own = f"; the tokenizer has {', '.join(named)}" if named else ""
        raise ConfigError(f"--chat-template {given}: there is no such file{own}.")
    if not named:
        return None
    own_tokens = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token")
    }
    special = {name: value for name, value in own_tokens.items() if isinstance(value, str)}
    return _jinja(named, {**special, **options})


def find_encoders(folder: Path) -> list[Path]:
    """Python files next to a tokenizer that may be used as a template."""
    return sorted(folder.glob("encoding/encoding*.py"))


def _named(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The tokenizer's templates by name; a file goes before what the configuration says."""
    for path in (folder / name for name in _FILES):
        if path.exists():
            document = _read(path) if path.suffix == ".json" else _read_text(path)
            found = document.get("chat_template") if isinstance(document, dict) else document
            more = (folder / "additional_chat_templates").glob("*.jinja")
            return {each.stem: _read_text(each) for each in more} | {"default": str(found)}
    found = config.get("chat_template") or {}
    if isinstance(found, list):
        try:
            return {str(each["name"]): str(each["template"]) for each in found}
        except (TypeError, KeyError):
            raise ConfigError(
                f"{folder / _CONFIG}: chat_template is {shortened(found)}, expected a text, or a "
                "list of objects with name and template."
            ) from None
    return {"default": str(found)} if found else {}


def _read_text(path: Path) -> str:
    return str(_read(path, lambda path: read_document(path).decode()))


def _read(path: Path, read: Callable[[Path], Any] = read_json) -> Any:
    try:
        return read(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        why = "it is no UTF-8" if isinstance(error, UnicodeError) else why
        raise ConfigError(f"{path}: cannot be read ({why}).") from None


class _Generation(Extension):
    """``{% generation %}`` marks what the model wrote; it changes nothing of the text."""

    tags = {"generation"}  # noqa: RUF012 (as its base declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _jinja(named: Mapping[str, str], options: Mapping[str, Any]) -> Render:
    """Render by the template called default; with tools by ``tool_use``, if there is one."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    compiled = {}
    _bound_time()
    for name, text in named.items():
        try:
            with _bounded_memory():
                compiled[name] = environment.from_string(text)
        except Exception as error:  # of Jinja, and of Python that compiles what Jinja made
            told = _brief(f"{type(error).__name__}: {error}".rstrip(": "))
            raise ConfigError(f"the chat template {name} is broken: {told}.") from None

    def render(
        messages: Sequence[Message], tools: Sequence[Any] | None, own: Mapping[str, Any]
    ) -> str:
        name = "tool_use" if tools and "tool_use" in compiled else "default"
        values = {
            **options,
            **own,
            "messages": [_reasoned(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": True,
        }
        with _refusing(named[name], "<template>"):
            return compiled[name].render(values)

    return render


def _brief(text: str) -> str:
    return text if len(text) <= _TOLD_CHARACTERS else f"{text[:_TOLD_CHARACTERS]}…"


def _refuse(message: str) -> None:
    raise TemplateError(message)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """``{{ "a" * 10**10 }}``: Jinja's sandbox bounds no memory, and folds constants early."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if _PAGES.exists():
        held = int(_PAGES.read_text().split()[0]) * resource.getpagesize()
        most = [held + RENDER_BYTES, *(each for each in (soft, hard) if each >= 0)]
        resource.setrlimit(resource.RLIMIT_AS, (min(most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def _refusing(source: str, file: str) -> Iterator[None]:
    """A template can fail in any way, and say what is in the messages: tell only its own words."""
    try:
        with _bounded_memory():
            yield
    except Exception as error:
        said, frames = str(error), walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == file]
        told = type(error).__name__ + (f" in line {lines[-1]}" if lines else "")
        if said and said in source:
            told += f": {_brief(said)}"
        raise Defect(f"the chat template refuses it ({told})") from None


def _reasoned(message: Message) -> Message:
    """What a model thought goes by several names; templates look for the first two."""
    thought = next((message[name] for name in _REASONING if name in message), None)
    return message if thought is None else {"thinking": thought, **message, _REASONING[0]: thought}


def _encoder(path: Path, options: Mapping[str, Any]) -> Render:
    """DeepSeek's encoder; tools are of the first system message."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None  # it ends in .py
    assert spec.loader is not None
    module, source = module_from_spec(spec), _read_text(path)
    try:
        spec.loader.exec_module(module)
        encode = getattr(module, _ENCODER)
    except Exception as error:
        raise ConfigError(
            f"--chat-template {path}: cannot be used ({error}): it should define {_ENCODER}, as "
            "DeepSeek's encoding/encoding_dsv4.py does."
        ) from None
    if _MODE in signature(encode).parameters and _MODE not in options:
        raise ConfigError(
            f"--chat-template {path}: servers differ in whether a model thinks by default: give "
            f"--template-options with {_MODE}, thinking as vLLM or chat as SGLang."
        )

    def render(
        messages: Sequence[Message], tools: Sequence[Any] | None, own: Mapping[str, Any]
    ) -> str:
        with _refusing(source, str(path)):
            return str(encode(_with_tools(messages, tools), **{**options, **own}))

    return render


def _with_tools(messages: Sequence[Message], tools: Sequence[Any] | None) -> list[Message]:
    found = [dict(message) for message in messages]
    if not tools:
        return found
    system = next((each for each in found if each["role"] == "system"), None)
    if system is None:
        system = {"role": "system", "content": ""}
        found.insert(0, system)
    system["tools"] = tools
    return found
