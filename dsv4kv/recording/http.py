"""HTTP/1.1 as it goes by: heads are read, bodies are passed on as they come (RFC 9112)."""

import asyncio
import re
from collections.abc import Iterable

HEAD_BYTES = 2**16
"""The longest head that is taken; a connection holds no more than twice as much at once."""
CHUNKED, TO_END = -1, -2
"""Instead of a length: a body in chunks, and one that ends with its connection."""
_PIECE_BYTES = 2**16
_REQUEST = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([!-~\x80-\xff]+) (HTTP/1\.[01])")
_ANSWER = re.compile(rb"(HTTP/1\.[01]) ([1-5][0-9]{2})(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_LENGTH = re.compile(rb"[0-9]{1,18}")

_OF_CONNECTIONS = frozenset(
    b"connection expect host keep-alive proxy-authenticate proxy-authorization proxy-connection "
    b"te trailer transfer-encoding upgrade".split()
)
"""Fields that speak of one connection (RFC 9110 §7.6.1), and those answered here."""


class Malformed(ValueError):
    """What came is no HTTP/1.1, or could be taken in two ways."""


class Head:
    """The head of a request or of an answer.

    Attributes:
        start: The three parts of its first line.
        fields: Names as they are spelled, and values.
    """

    def __init__(
        self, start: tuple[bytes, bytes, bytes], fields: list[tuple[bytes, bytes]]
    ) -> None:
        self.start, self.fields = start, fields
        self._values: dict[bytes, list[bytes]] = {}
        for name, value in fields:
            self._values.setdefault(name.lower(), []).append(value)

    def values(self, name: bytes) -> list[bytes]:
        """Values of a field, by its name in lower case."""
        return self._values.get(name, [])

    def tokens(self, name: bytes) -> list[bytes]:
        """Words of a field that lists some, in lower case."""
        parts = b",".join(self.values(name)).lower().split(b",")
        return [part for each in parts if (part := each.strip())]

    def passed_on(self) -> list[tuple[bytes, bytes]]:
        """Fields that do not speak of the connection."""
        own = _OF_CONNECTIONS.union(self.tokens(b"connection"))
        return [field for field in self.fields if field[0].lower() not in own]


async def read_request(reader: asyncio.StreamReader) -> Head:
    """The head of the next request.

    Raises:
        Malformed: It is none.
        IncompleteReadError: The connection ends.
    """
    return await _read_head(reader, _REQUEST)


async def read_answer(reader: asyncio.StreamReader) -> Head:
    """The head of the next answer; raises as ``read_request``."""
    return await _read_head(reader, _ANSWER)


async def _read_head(reader: asyncio.StreamReader, start: re.Pattern[bytes]) -> Head:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Malformed(f"a head of more than {HEAD_BYTES:,} bytes") from None
    first, *lines = raw.lstrip(b"\r\n")[:-4].split(b"\r\n")
    begin, found = start.fullmatch(first), [_FIELD.fullmatch(line) for line in lines]
    if begin is None or None in found:
        raise Malformed("a head that is no HTTP/1.1")
    return Head(
        (begin[1], begin[2], begin[3] or b""), [(each[1], each[2]) for each in found if each]
    )


def format_head(start: Iterable[bytes], fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A head as it goes out."""
    lines = [b" ".join(start), *(b": ".join(field) for field in fields)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def request_length(head: Head) -> int:
    """Bytes of a request's body, or ``CHUNKED``.

    Raises:
        Malformed: Two servers could find two ends.
    """
    coded, lengths = head.tokens(b"transfer-encoding"), head.values(b"content-length")
    if not coded:
        return _length(lengths) if lengths else 0
    if coded != [b"chunked"] or lengths or head.start[2] == b"HTTP/1.0":
        raise Malformed("a body whose end is not clear")
    return CHUNKED


def answer_length(head: Head, method: bytes) -> int:
    """Bytes of an answer's body, ``CHUNKED`` or ``TO_END``; raises as ``request_length``."""
    if method == b"HEAD" or head.start[1] in {b"204", b"304"} or head.start[1].startswith(b"1"):
        return 0
    if coded := head.tokens(b"transfer-encoding"):
        if coded != [b"chunked"]:
            raise Malformed("a body in an unknown coding")
        return CHUNKED
    lengths = head.values(b"content-length")
    return _length(lengths) if lengths else TO_END


def _length(lengths: list[bytes]) -> int:
    if len(set(lengths)) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise Malformed("a length that is no number")
    return int(lengths[0])


class Body:
    """A body that is passed on as it comes.

    Attributes:
        is_over: Whether more came behind it: nobody knows what that would be an answer to.
    """

    def __init__(self, reader: asyncio.StreamReader, length: int) -> None:
        self._reader, self._left = reader, length
        self._chunks = _Chunks() if length == CHUNKED else None
        self.is_over = False

    async def read(self) -> tuple[bytes, bytes] | None:
        """What has come, as it came and without the marks of its chunks; None at its end.

        Raises:
            Malformed: Chunks that are none.
            IncompleteReadError: The connection ends before it.
        """
        if not self._left or (self._chunks and self._chunks.is_done):
            return None
        most = min(self._left, _PIECE_BYTES) if self._left > 0 else _PIECE_BYTES
        piece = await self._reader.read(most)
        if self._left == TO_END:
            return (piece, piece) if piece else None
        if not piece:
            raise asyncio.IncompleteReadError(b"", None)
        if self._chunks is None:
            self._left -= len(piece)
            return piece, piece
        content, used = self._chunks.feed(piece)
        self.is_over = used < len(piece)
        return piece[:used], content


class _Chunks:
    """Follows a body in chunks to its end."""

    def __init__(self) -> None:
        self._left, self._line, self._lines = 0, b"", 0
        self._next = self._size
        self.is_done = False

    def feed(self, piece: bytes) -> tuple[bytes, int]:
        """The content of what comes next, and how many bytes of it are of the body."""
        content, at = [], 0
        while at < len(piece) and not self.is_done:
            if self._left:
                content.append(piece[at : at + self._left])
                at += len(content[-1])
                self._left -= len(content[-1])
                continue
            end = piece.find(b"\n", at) + 1
            self._line += piece[at : end or None]
            at = end or len(piece)
            if len(self._line) > HEAD_BYTES:
                raise Malformed("a line without end")
            if end:
                line, self._line = self._line, b""
                self._next(line)
        return b"".join(content), at

    def _size(self, line: bytes) -> None:
        found = _CHUNK.fullmatch(line)
        if found is None:
            raise Malformed("a chunk without a length")
        self._left = int(found[1], 16)
        self._next = self._end if self._left else self._last

    def _end(self, line: bytes) -> None:
        if line != b"\r\n":
            raise Malformed("a chunk without end")
        self._next = self._size

    def _last(self, line: bytes) -> None:
        """Fields may follow on the last chunk."""
        self.is_done = line == b"\r\n"
        self._lines += len(line)
        if self._lines > HEAD_BYTES:
            raise Malformed("fields without end after a body")
