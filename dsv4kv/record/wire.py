"""Batches of KV events as vLLM and SGLang publish them: msgpack, maps or arrays.

A batch is ``[seconds, events, rank]``. Its events are maps with a ``type``, or, in older versions,
arrays that begin with it. Unknown fields and kinds of events are ignored. Read in
vLLM 0.33 and SGLang 0.5.23 (``distributed/kv_events.py``, ``disaggregation/kv_events.py``) and in
older versions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsv4kv.traces.files import MOST_S

BlockHash = int | bytes

_ORDER = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
"""Fields in the order of arrays."""

_PARTIAL = ("sliding", "chunked", "mamba")
"""Prefixes of the kinds of groups that keep a window or a state."""


_MOST_EVENTS, _MOST_HASHES = 2**17, 2**21  # of a batch: its row is one that readers take
_MOST_GROUPS = 2**10  # of a cache
_MOST_PARTS = 2**21  # lists and maps of a payload; each of one byte takes 70 B
_LISTS_AND_MAPS = bytes(range(0x80, 0xA0))  # how those begin that have few elements
_LONGEST_NAMES = 1_000  # of a request's adapter and tenant, with which every block is hashed


class Unreadable(ValueError):
    """A payload that is no batch."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks that were cached."""

    hashes: tuple[BlockHash, ...]  # the server's names of the blocks
    parent: BlockHash | None  # name of the block before the first; None at the start of the prompt
    tokens: tuple[int, ...]  # of all blocks; a window's groups may have tokens of more blocks
    block_tokens: int  # tokens of a block; 0 for an offloaded block that only has a place
    medium: str | None = None  # device; None is the GPU
    group: int | None = None  # number of the cache group; None where there is only one
    kind: str | None = None  # kind of the group
    window: int | None = None  # tokens of its window; None if it keeps everything
    session: str | None = None  # session named by the request
    # Other keys of a block's identity, one entry per block, or empty
    extras: tuple[object, ...] = ()

    @property
    def is_chain(self) -> bool:
        """Whether these are all blocks of a part of the prompt.

        For groups that keep a window or a state, servers name the last blocks, or all, and may
        have cached fewer.
        """
        partial = self.window is not None or (self.kind or "").startswith(_PARTIAL)
        whole = len(self.hashes) * self.block_tokens == len(self.tokens)
        return bool(self.block_tokens) and whole and not partial


@dataclass(frozen=True, slots=True)
class Removed:
    """Evicted blocks."""

    hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The cache was cleared."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one step of the server's scheduler."""

    at_s: float  # by the server's clock, seconds since 1970
    events: tuple[Event, ...]  # in order
    rank: int = 0  # the server's data-parallel rank


def unpack(payload: bytes) -> Batch:
    """Read a payload; raises ``Unreadable`` if it is no batch."""
    import msgspec

    try:
        if len(payload) - len(payload.translate(None, _LISTS_AND_MAPS)) > _MOST_PARTS:
            raise ValueError("millions of lists")
        at_s, events, *rest = msgspec.msgpack.decode(payload)
        rank = next(iter(rest), None)
        if not -MOST_S <= at_s <= MOST_S:
            raise ValueError("no time")
        if len(events) > _MOST_EVENTS:
            raise ValueError("too many events")
        found = tuple(_events(events))
        if (
            sum(0 if isinstance(each, Cleared) else len(each.hashes) for each in found)
            > _MOST_HASHES
        ):
            raise ValueError("too many blocks")
        return Batch(float(at_s), found, _whole(0 if rank is None else rank))
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise Unreadable(str(error)) from None


def _events(values: Iterable[Any]) -> Iterator[Event]:
    for value in values:
        if isinstance(value, dict):
            kind, fields = value["type"], value
        else:
            kind, *rest = value
            fields = dict(zip(_ORDER.get(kind, ()), rest, strict=False))
        if kind in _MADE:
            yield _MADE[kind](fields)


def _stored(fields: Mapping[str, Any]) -> Stored:
    parent, tokens = fields.get("parent_block_hash"), _tokens(fields["token_ids"])
    return Stored(
        hashes=_hashes(fields["block_hashes"]),
        parent=None if parent is None else _hashes([parent])[0],
        tokens=tokens,
        block_tokens=_whole(fields["block_size"], 1 if tokens else 0),
        medium=_text(fields.get("medium")),
        group=_optional(fields.get("group_idx"), _MOST_GROUPS),
        kind=_text(fields.get("kv_cache_spec_kind")),
        window=_optional(fields.get("kv_cache_spec_sliding_window")),
        session=_text(fields.get("session_id")),
        extras=_extras(fields),
    )


_MADE: dict[str, Callable[[Mapping[str, Any]], Event]] = {
    "BlockStored": _stored,
    "BlockRemoved": lambda fields: Removed(
        _hashes(fields["block_hashes"]),
        _text(fields.get("medium")),
        _optional(fields.get("group_idx"), _MOST_GROUPS),
    ),
    "AllBlocksCleared": lambda _: Cleared(),
}


def _hashes(values: Iterable[Any]) -> tuple[BlockHash, ...]:
    hashes = tuple(values)
    if not set(map(type, hashes)) <= {int, bytes}:
        raise TypeError("block hashes")
    return tuple(one % 2**64 if isinstance(one, int) else one for one in hashes)


def _tokens(values: list[Any]) -> tuple[int, ...]:
    """Tokens; of a tree that looks one ahead, the first of every pair."""
    firsts = values if set(map(type, values)) <= {int} else [pair[0] for pair in values]
    low, high = min(firsts, default=0), max(firsts, default=0)
    if not set(map(type, firsts)) <= {int} or low < 0 or high >= 2**63:
        raise TypeError("tokens")
    return tuple(firsts)


def _extras(fields: Mapping[str, Any]) -> tuple[object, ...]:
    blocks = len(fields["block_hashes"])
    of_all = tuple(fields.get(name) for name in ("lora_id", "lora_name", "cache_salt"))
    of_each = fields.get("extra_keys") or [None] * blocks
    if of_all == (None,) * 3 and not any(of_each):
        return ()
    if len(of_each) != blocks or len(repr(of_all)) > _LONGEST_NAMES or not _is_shallow(of_each):
        raise ValueError("extra_keys")
    return tuple((of_all, each) for each in of_each)


def _is_shallow(value: Any, left: int = 50) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(_is_shallow(each, left - 1) for each in parts)


def _whole(value: Any, low: int = 0, high: int = 2**63) -> int:
    if type(value) is not int or not low <= value < high:
        raise ValueError(f"{value!r}"[:40])
    return value


def _optional(value: Any, high: int = 2**63) -> int | None:
    return None if value is None else _whole(value, 0, high)


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("text")
    return value
