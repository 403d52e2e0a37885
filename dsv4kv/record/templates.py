"""What a tokenizer's folder brings: its chat template and the tokenizer, run by a child process.

A template is Jinja, rendered in a sandbox as Transformers 5.23 does
(``utils/chat_template_utils.py``), or a Python file with the function ``encode_messages`` that
DeepSeek publishes with V3.2 and V4 instead of one (``encoding/encoding_dsv4.py``).

Nothing but the system bounds a loop in C, as comparing lists that hold each other has, or the
memory of a normalizer that makes gigabytes of a text: Rust ends its process where it gets none.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from reprlib import repr as shortened
from time import process_time
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dsv4kv.errors import ConfigError
from dsv4kv.files import read_document, read_json
from dsv4kv.processes import ChildEnded, Confined, bounded_memory, without_stderr
from dsv4kv.traces.files import Defect
from dsv4kv.units import cut

if TYPE_CHECKING:
    from tokenizers import Tokenizer

RENDER_BYTES = 1 << 30  # of memory that a chat template may take for one conversation
RENDER_S = 10.0  # of processor time
_CHARACTER_BYTES = 256  # and for a character to tokenize, which takes 200
_CHARACTER_S = 1e-4  # which takes 1e-6; a pattern of the tokenizer may take its length squared
_LOADED_BYTES = 64  # and for a byte of its file, which takes 10
_TOLD_CHARACTERS = 200  # of a template's own sentence
_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_ENCODER = "encode_messages"
_MODE = "thinking_mode"
_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]
Render = Callable[[Sequence[Message], Sequence[Any] | None, Mapping[str, Any]], str]
"""Makes the text of messages, of the tools they may call and of options of their own."""


def confined(name: str, make: Callable[..., object], *given: Any) -> Callable[..., Any]:
    """Calls a method of ``make(*given)`` in a child process; ``Defect`` where that ends it."""
    child = Confined(_limited, (RENDER_S, RENDER_BYTES), make, *given)

    def ask(method: str, *given: Any, **named: Any) -> Any:
        try:
            return child.ask(method, *given, **named)
        except ChildEnded as ended:
            why = {
                -signal.SIGPROF: f"takes more than {RENDER_S:g} s for one conversation",
                -signal.SIGABRT: "takes more memory than it may",
            }.get(ended.code, f"ended its process (code {ended.code})")
            raise Defect(f"{name} {why}") from None

    return ask


def _limited(limits: tuple[float, int], make: Callable[..., object], *given: Any) -> object:
    """Make an object in the child process, under its parent's limits."""
    global RENDER_S, RENDER_BYTES
    RENDER_S, RENDER_BYTES = limits
    return make(*given)


@contextmanager
def _bounded_time(most_s: float) -> Iterator[None]:
    """The system ends the process after ``most_s`` of the processor, in any loop."""
    signal.setitimer(signal.ITIMER_PROF, most_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class Tokens:
    """A tokenizer, in the child process."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    def splits(self) -> list[str]:
        """Patterns of added tokens, which split a text before anything else, one by one."""
        known = self._tokenizer.get_added_tokens_decoder().values()
        added = [token for token in known if token.content]
        as_written = str(self._tokenizer.normalizer) in {"None", "Sequence(normalizers=[])"}
        # a tokenizer looks for added tokens that are not normalized first, then for the others
        passes = [[token for token in added if token.normalized is late] for late in (False, True)]
        patterns = []
        for tokens in passes if as_written else passes[:1]:
            if any(token.lstrip or token.rstrip or token.single_word for token in tokens):
                break
            names = sorted((token.content for token in tokens), key=len, reverse=True)
            if names:  # the longest match is taken
                patterns.append(f"({'|'.join(map(re.escape, names))})")
        return patterns

    def encode(self, texts: list[str], special: bool = False) -> list[list[int]]:
        """Token ids of every text; ``special``: with the special tokens that are put around."""
        length = sum(map(len, texts))
        most, most_s = RENDER_BYTES + _CHARACTER_BYTES * length, RENDER_S + _CHARACTER_S * length
        try:
            with _bounded_time(most_s), bounded_memory(most), without_stderr():
                # the fast variant does not compute offsets
                found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)
                return [encoding.ids for encoding in found]
        except BaseException as error:  # a panic of its Rust is no Exception
            raise Defect(f"the tokenizer failed ({_said(error)})") from None


def _said(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def load_tokens(place: Path) -> Tokens:
    """Load a tokenizer, without truncation and padding; raises ``ConfigError``."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError(
            "tokenizing needs the package tokenizers, which is not installed: "
            "pip install 'dsv4kv[tokenize]'."
        ) from None
    path = place / "tokenizer.json" if place.is_dir() else place
    if not path.is_file():
        raise ConfigError(
            f"--tokenizer {place}: there is no {path.name}: name the folder of a model that has "
            "one, as Hugging Face's fast tokenizers do."
        )
    most = RENDER_BYTES + _LOADED_BYTES * path.stat().st_size
    try:
        with bounded_memory(most), without_stderr():
            tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except BaseException as error:  # a panic of its Rust is no Exception
        raise ConfigError(f"--tokenizer {path}: cannot be used ({_said(error)}).") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):  # for training: other tokens every time
        tokenizer.model.dropout = None
    return Tokens(tokenizer)


def load_template(
    folder: Path, given: str | None, options: Mapping[str, Any]
) -> Callable[..., str] | None:
    """``render`` of the template of a tokenizer's folder, or of the one given; ``ConfigError``.

    ``given``: a file, of Jinja or, where it ends in ``.py``, of Python, which is run. ``options``
    are the template's, for all messages. None where there is no template.
    """
    ask = confined("the chat template", _Renderer, folder, given, dict(options))
    try:
        return partial(ask, "render") if ask("exists") else None
    except Defect as defect:
        raise ConfigError(f"the chat template is broken: {defect}.") from None


class _Renderer:
    """A chat template, in the child process."""

    def __init__(self, *given: Any) -> None:
        self._render, self._left_s = _load(*given), 0.0

    def exists(self) -> bool:
        return self._render is not None

    def render(self, *prompt: Any, first: bool = True) -> str:
        """The text of messages, tools and options; ``first``: the conversation's time begins."""
        assert self._render is not None
        self._left_s = RENDER_S if first else self._left_s
        if self._left_s <= 0:
            signal.raise_signal(signal.SIGPROF)
        begun_s = process_time()
        try:
            with _bounded_time(self._left_s):
                return self._render(*prompt)
        finally:
            self._left_s -= process_time() - begun_s


def _load(folder: Path, given: str | None, options: Mapping[str, Any]) -> Render | None:
    if given and given.endswith(".py"):
        return _encoder(Path(given), options)
    path, own = folder / _CONFIG, folder / _TEMPLATE
    config = _read(path, read_json) if path.exists() else {}
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: it is no object, so no configuration of a tokenizer.")
    if given and not os.path.isfile(given):  # noqa: PTH113 (False for a name too long, where Path raises)
        raise ConfigError(f"--chat-template {given}: there is no such file.")
    text = config.get("chat_template") or None
    if given or own.exists():
        text = _read(Path(given or own), _read_text)
    if not isinstance(text, str | None):
        raise ConfigError(
            f"{path}: chat_template is {shortened(text)}, expected a text: give a file, "
            "--chat-template FILE."
        )
    if text is None:
        return None
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    tokens = {name: v.get("content") if isinstance(v, dict) else v for name, v in named.items()}
    special = {name: token for name, token in tokens.items() if isinstance(token, str)}
    return _jinja(text, {**special, **options})


def _read_text(path: Path) -> str:
    return read_document(path).decode()


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
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


def _jinja(text: str, options: Mapping[str, Any]) -> Render:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        with _bounded_time(RENDER_S), bounded_memory(RENDER_BYTES):
            compiled = environment.from_string(text)
    except Exception as error:  # of Jinja, and of Python that compiles what Jinja made
        said = cut(f"{type(error).__name__}: {error}".rstrip(": "), _TOLD_CHARACTERS)
        raise ConfigError(f"the chat template is broken: {said}.") from None

    def render(
        messages: Sequence[Message], tools: Sequence[Any] | None, own: Mapping[str, Any]
    ) -> str:
        values = {
            **options,
            **own,
            "messages": list(map(_reasoned, messages)),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": True,
        }
        with _refusing(text, "<template>"):
            return compiled.render(values)

    return render


def _refuse(message: str) -> None:
    raise TemplateError(message)


@contextmanager
def _refusing(source: str, file: str) -> Iterator[None]:
    """A template can fail in any way, and say what is in the messages: tell only its own words."""
    try:
        with bounded_memory(RENDER_BYTES):
            yield
    except Exception as error:
        said, frames = str(error), walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == file]
        told = type(error).__name__ + (f" in line {lines[-1]}" if lines else "")
        if said and said in source:
            told += f": {cut(said, _TOLD_CHARACTERS)}"
        raise Defect(f"the chat template refuses it ({told})") from None


def _reasoned(message: Message) -> Message:
    """What a model thought goes by several names; templates look for the first two."""
    thought = next((message[name] for name in _REASONING if name in message), None)
    return message if thought is None else {"thinking": thought, **message, _REASONING[0]: thought}


def _encoder(path: Path, options: Mapping[str, Any]) -> Render:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None  # it ends in .py
    assert spec.loader is not None
    module, source = module_from_spec(spec), _read(path, _read_text)
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
        found = [dict(message) for message in messages]
        if tools:
            if not any(each["role"] == "system" for each in found):
                found.insert(0, {"role": "system", "content": ""})
            next(each for each in found if each["role"] == "system")["tools"] = tools
        with _refusing(source, str(path)):
            return str(encode(found, **{**options, **own}))

    return render
