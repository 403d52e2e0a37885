"""Odd files made of good ones: bytes are damaged, values replaced, structure bent."""

import json
import sqlite3
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, "", " ", "x" * 5_000, [], {}, [[]], [None], {"": None}, {"x": []},
    0, -1, 1, -0.0, 0.5, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400,
    1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"),
    "NaN", "1e400", "0x10", "1_000", "１２", "2026-13-45T99:99:99Z", "9" * 5_000,
    "\x1b]52;c;cm0gLXJmIC8=\x07", "\x9b31m", "\r\n", "\x00", "\ud800", "\u202e", "[/b] [red]",
    "../../../etc/passwd", "{{ 7 * 7 }}", "%s%n", "=1+1", "<script>", "$(id)", "🙂", "é" * 300,
)  # fmt: skip

ODD_BYTES = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[2J", b"\xed\xa0\x80", b"\x80", b"\n\n", b"\r",
    b"9" * 5_000, b"[" * 5_000, b'{"a":' * 5_000, b"1e999", b"-", b"NaN", b"Infinity", b'"', b"\\",
    b"null", b"\\ud800", b"{}", b"[]", b",", b":", b"\x1f\x8b", b"PK\x03\x04",
    b"SQLite format 3\0", b"<<: *a\n", b"&a [*a]\n", b"!!python/object:os.system x\n",
    b"? [a]\n: b\n", b"\t", b"%YAML 9\n",
)  # fmt: skip

BOMB = b"".join(
    b"%c: &%c [%s]\n" % (97 + i, 97 + i, b",".join([b"*%c" % (96 + i)] * 9) if i else b"x")
    for i in range(12)
)
MERGES = b"a0: &a0 {k: 1}\n" + b"".join(
    b"a%d: &a%d {<<: [%s]}\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 12)
)


def damage(content: bytes, random: Random) -> bytes:
    """A few changes of bytes: flipped, cut, repeated, put in."""
    found = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
        at = random.randrange(len(found) + 1)
        end = min(len(found), at + random.choice((1, 2, 8, 64, 4096)))
        kind = random.randrange(5)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            del found[at:end]
        elif kind == 2:
            found[at:at] = found[at:end] * random.choice((1, 3, 50))
        elif kind == 3:
            del found[at:]
        else:
            found[at:at] = random.choice(ODD_BYTES)
    return bytes(found)


def bend(value: Any, random: Random) -> Any:
    """A JSON document with a few of its parts replaced, left out, renamed or repeated."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        value = _bend_once(value, random)
    return value


def _bend_once(value: Any, random: Random) -> Any:
    parts = [value]
    while isinstance(parts[-1], dict | list) and parts[-1] and random.random() < 0.85:
        held = parts[-1]
        parts.append(random.choice(list(held.values()) if isinstance(held, dict) else held))
    if len(parts) == 1:
        return deepcopy(random.choice(ODD_VALUES))  # it may be bent in its turn
    holder, old = parts[-2], parts[-1]
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key = next(key for key in keys if holder[key] is old)
    kind = random.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[str(random.choice(ODD_VALUES))] = holder.pop(key)
    elif kind == 2 and isinstance(holder, list):
        holder[key:key] = [old] * random.choice((1, 40))
    elif kind == 3 and isinstance(old, int | float):
        as_float = float(old) if abs(old) < sys.float_info.max else -old
        holder[key] = random.choice((-old, old + 1, old * 1000, old * 10**30, as_float))
    elif kind == 4:
        holder[key] = _nested(random.choice((50, 2_000)))
    else:
        holder[key] = deepcopy(random.choice(ODD_VALUES))
    return value


def _nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def odd_json(content: bytes, random: Random) -> bytes:
    """A JSON document bent; if it has lines of JSON, one of them."""
    try:
        return dump(bend(json.loads(content), random))
    except ValueError:
        pass
    lines = content.splitlines(keepends=True)
    at = random.randrange(len(lines))
    try:
        lines[at] = dump(bend(json.loads(lines[at]), random)) + b"\n"
    except ValueError:
        return damage(content, random)
    return b"".join(lines)


def dump(document: Any) -> bytes:
    """JSON of a document that need not fit the standard."""
    try:
        return json.dumps(document).encode()
    except (RecursionError, ValueError):
        return b"[" * 100_000


def odd_words(content: bytes, random: Random) -> bytes:
    """Text with some of its numbers and words replaced."""
    words = content.split(b" ")
    for _ in range(random.choice((1, 2, 5))):
        odd = str(random.choice(ODD_VALUES)).encode("utf-8", "surrogatepass")
        words[random.randrange(len(words))] = odd
    return b" ".join(words)


def odd_yaml(content: bytes, random: Random) -> bytes:
    """YAML with something that YAML can do and nobody expects."""
    extra = random.choice((BOMB, MERGES, b"--- \nx: 1\n", b"a: &a\n  b: *a\n", b"<<: 7\n"))
    return content + extra if random.random() < 0.5 else extra + content


def odd_database(path: Path, random: Random) -> None:
    """Change a cell, a column or a table of a database, in place."""
    connection = sqlite3.connect(path, isolation_level=None)
    tables = [name for (name,) in connection.execute("select name from sqlite_master")]
    table = random.choice(tables)
    columns = [row[1] for row in connection.execute(f'pragma table_info("{table}")')]
    column, value = random.choice(columns), random.choice(ODD_VALUES)
    if not isinstance(value, str | float | int | None) or (
        isinstance(value, int) and not -(2**63) <= value < 2**63
    ):
        value = b"blob"
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()
    some = f"where rowid % {random.choice((1, 2, 3))} = 0"
    statements: list[tuple[str, tuple[Any, ...]]] = [
        (f'update "{table}" set "{column}" = ? {some}', (value,)),
        (f'update "{table}" set "{column}" = "{column}" * 1e18 {some}', ()),
        (f'alter table "{table}" rename column "{column}" to "other"', ()),
        (f'delete from "{table}" {some}', ()),
        (f'drop table "{table}"', ()),
        (f'insert into "{table}" select * from "{table}"', ()),
    ]
    connection.execute(*random.choice(statements))
    if random.random() < 0.2 and table in tables:
        view = (
            "with recursive n(i) as (select 1 union all select i + 1 from n) "
            f"select i as {', i as '.join(columns)} from n"
        )
        connection.execute(f'drop table if exists "{table}"')
        connection.execute(f'create view "{table}" as {view}')
    connection.close()


Mutation = Callable[[bytes, Random], bytes]
