"""Token counts and ids of requests to an OpenAI-compatible API and their answers.

Only the beginning, the end and the last ``usage`` before it are read of an answer, streamed or
not: they have its id and counts. A prompt's ids come from its tokens, or from its text in pieces
of as many bytes as the tokens of an id had in the first prompt of reported length.
"""

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json

from dsv4kv.record import Veil, chained
from dsv4kv.record.folder import MOST_TOKENS, Record
from dsv4kv.record.logs import cached_by

KEPT_HEAD_BYTES = 4_096
KEPT_TAIL_BYTES = 65_536
_LEAST_TOKENS = 256  # of the first prompt: in a shorter one, what a template adds weighs more
_MOST_BYTES = 16  # of text for a token of the first prompt: more is text that is no prompt's
_UNSEEN_TOKENS = 2**16  # of images and the like, whose text is shorter than its tokens
_UNPACKED_BYTES = 2**24  # looked at of an answer
_MEMBER_BYTES = 2**10  # that a gzip member counts in addition: an empty one has 20
_TRIES = 4  # to read what may be the usage
_SESSION_HEADERS = ("x-session-id", "x-conversation-id", "x-correlation-id", "x-smg-routing-key")
_SESSION_FIELDS = ("session_id", "prompt_cache_key")
_APART = ("cache_read_input_tokens", "cache_creation_input_tokens")
_PACKED = ("gzip", "x-gzip", "deflate")
_ANY_WINDOW = 47  # of zlib: 32 KiB, gzip's head or zlib's
_FILE = re.compile(r'(?:(?<=base64,)|(?<="data": "))[\w+/=-]{256,}', re.ASCII)
"""An image or another file in a message, whose bytes say nothing of its tokens."""
_ID = re.compile(rb'(?<!\\)"id"\s*:\s*"((?:[^"\\]|\\.)*)"')
_USAGE = re.compile(rb'(?<!\\)"(?:usage|meta_info)"\s*:\s*(?=\{)')


class Ends:
    """Beginning and end of an answer; ``coding`` is its ``Content-Encoding``."""

    def __init__(self, coding: str = "") -> None:
        self._head, self._usage, self._tail = bytearray(), bytearray(), bytearray()
        packed = coding.strip().lower() in _PACKED
        self._unpack = zlib.decompressobj(_ANY_WINDOW) if packed else None
        self._left = _UNPACKED_BYTES

    def add(self, chunk: bytes) -> Iterator[None]:
        """Add the next part; yields where others may go on."""
        if self._unpack is None:
            self._keep(chunk)
            return
        with suppress(zlib.error):
            while chunk and self._left > 0:
                if self._unpack.eof:  # gzip may have several members
                    self._unpack = zlib.decompressobj(_ANY_WINDOW)
                part = self._unpack.decompress(chunk, KEPT_TAIL_BYTES)
                self._left -= len(part) + _MEMBER_BYTES * self._unpack.eof
                self._keep(part)
                chunk = self._unpack.unconsumed_tail or self._unpack.unused_data
                yield

    def _keep(self, chunk: bytes) -> None:
        if len(self._head) < KEPT_HEAD_BYTES:
            self._head += chunk[: KEPT_HEAD_BYTES - len(self._head)]
        self._tail += chunk
        if len(self._tail) > 2 * KEPT_TAIL_BYTES:
            at = self._tail.rfind(b'"usage"', 0, -KEPT_TAIL_BYTES)
            if at >= 0:  # log-probabilities of a long prompt come behind it
                self._usage = self._tail[at : at + KEPT_HEAD_BYTES]
            del self._tail[:-KEPT_TAIL_BYTES]

    def row(self, veil: Veil) -> Record:
        """Id and token counts that the answer has."""
        row: Record = {}
        if found := _ID.search(self._head):
            name = found[1].decode("utf-8", "replace")
            with suppress(ValueError):
                name = str(from_json(b'"' + found[1] + b'"'))
            row["id"] = veil.name(name)
        if self._head.lstrip().startswith(b"["):  # answers to a batch: no count is of all
            return row
        kept = self._head, self._usage, self._tail
        ends = [each for text in kept for each in list(_USAGE.finditer(text))[-_TRIES:]]
        counts: Record = {}
        for match in reversed(ends):  # Anthropic's streams have the prompt's at the beginning
            with suppress(ValueError, RecursionError):
                text = match.string[match.end() :].decode("utf-8", "replace")
                usage, _ = json.JSONDecoder().raw_decode(text)
                counts = counts_of(usage) | counts
                if isinstance(name := usage.get("id"), str):  # SGLang's, behind a long answer
                    row.setdefault("id", veil.name(name))
            if "input_tokens" in counts:
                break
        return row | counts


def counts_of(usage: Mapping[str, Any]) -> Record:
    """The counts that a server reports, those that a request can have; raises ``ValueError``."""
    known = {name: value for name, value in usage.items() if value is not None}
    detailed = known.get("prompt_tokens_details") or known.get("input_tokens_details")
    details = detailed if isinstance(detailed, dict) else {}
    cached = details.get("cached_tokens")
    asked = known.get("prompt_tokens", known.get("input_tokens"))
    if cached is None and "prompt_tokens" not in known and type(asked) is int:
        # Anthropic's count leaves out the cached
        asked += sum(each for each in map(known.get, _APART) if type(each) is int)
    if cached is None:
        cached = known.get("cache_read_input_tokens", known.get("cached_tokens"))
    counts = {
        "input_tokens": asked,
        "output_tokens": known.get("completion_tokens", known.get("output_tokens")),
        "cached_tokens": cached,
    }
    with suppress(ValueError):
        counts["cached_by"] = cached_by(known.get("cached_tokens_details") or details)
    return {name: value for name, value in counts.items() if _is_count(value)}


def _is_count(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(map(_is_count, value.values()))
    return type(value) is int and 0 <= value <= MOST_TOKENS


class Prompts:
    """What bodies of requests say of them, for a recording's secret and tokens of an id."""

    def __init__(self, salt: bytes, grain: int) -> None:
        self._veil = Veil(salt, grain)

    def row(
        self,
        content: bytes | bytearray,
        headers: Mapping[str, str],
        tokens: int | None,
        block_bytes: float | None,
    ) -> Record:
        """The session of a request, and ids if its length is known.

        ``headers``: by names in small letters. ``tokens``: 0 where the answer does not say, None
        where no server took the request. ``block_bytes``: text of an id's tokens; its row
        has it as ``place``.
        """
        body: dict[str, Any] = {}
        with suppress(ValueError):
            parsed = from_json(content)
            body = parsed if isinstance(parsed, dict) else {}
        named = [headers.get(name) for name in _SESSION_HEADERS]
        named += [body.get(name) for name in _SESSION_FIELDS]
        session = next((name for name in named if isinstance(name, str) and name), None)
        row = {} if session is None else {"session": self._veil.name(session)}
        grain = self._veil.grain
        if tokens is None:
            return row
        for found in map(body.get, ("prompt", "input_ids", "prompt_token_ids", "token_ids")):
            given = found if isinstance(found, list) else []
            if len(given) == 1 and isinstance(given[0], list):  # a batch of one
                (given,) = given
            if set(map(type, given)) == {int}:
                ids = self._veil.prompt(given)
                return row | {"input_tokens": tokens or len(given), "ids": ids, "grain": grain}
        text = prompt_text(body)
        if not block_bytes and _LEAST_TOKENS <= tokens <= len(text) <= _MOST_BYTES * tokens:
            block_bytes = len(text) / tokens * grain
        given = [body.get(name) for name in ("prompt", "text", "input_ids")]
        lists = [each for each in given if isinstance(each, list) and len(each) > 1]
        is_batch = any(type(each[0]) is not int for each in lists)
        if not tokens or is_batch or not block_bytes or not text:
            return row
        ids = text_ids(text, tokens, block_bytes, self._veil)
        return row | {"ids": ids, "grain": grain, "ids_of": "text", "place": block_bytes}


def prompt_text(body: Mapping[str, Any]) -> bytes:
    """The text of a prompt in a template's order: tools, instructions, messages."""
    texts = []
    for name in ("tools", "system", "instructions", "prompt", "text", "input", "messages"):
        value = body.get(name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                texts.append(each)
            elif isinstance(each, dict):
                text = json.dumps(each, ensure_ascii=False, sort_keys=True)
                texts.append(_FILE.sub(_name_file, text))
    return "\n".join(texts).encode("utf-8", "replace")


def _name_file(found: re.Match[str]) -> str:
    return blake2b(found[0].encode(), digest_size=16).hexdigest()


def text_ids(text: bytes, tokens: int, block_bytes: float, veil: Veil) -> list[int]:
    """Ids of a prompt's full blocks, made of its text.

    Prompts share ids as far as their texts are equal. The last id stands for the rest of the text,
    so that prompts that differ anywhere differ in ids.
    """
    blocks = min(tokens, len(text) + _UNSEEN_TOKENS) // veil.grain
    edges = [round(number * block_bytes) for number in range(blocks)]
    pieces = [text[a:b] for a, b in zip(edges, [*edges[1:], None], strict=True)]
    return list(chained(map(veil.name, pieces)))
