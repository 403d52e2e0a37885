"""Lists of block ids in a conversation's text, read before the rest of it.

A turn repeats the ids of the turn before it: where the text of a list begins as that of the list
before, its ids do, too, and only what follows is parsed.
"""

import json
import re
from typing import Any

from dsv4kv.workload.traces.runs import GrowingRuns, IdRuns

_LIST = re.compile(r'(?<!\\)"hash_ids"\s*:\s*\[')
ID_BOUND = 2**40
"""Ids are below; so those of many conversations can be kept apart in 64 bits."""
_MARK = "\\u0000"  # no trace has it; a text that does is left alone


def lift_ids(text: str) -> tuple[str, list[IdRuns]]:
    """Take the lists of ids out of a JSON text.

    Returns:
        The text with a name in the place of every list that was taken, and those lists. Lists of
        anything but whole numbers from 0 to 2^40 stay where they are.
    """
    if _MARK in text:
        return text, []
    kept: list[str] = []
    lists: list[IdRuns] = []
    at = 0
    before, growing = "", GrowingRuns()
    while match := _LIST.search(text, at):
        end = text.find("]", match.end())
        if end < 0:
            break
        body = text[match.end() : end]
        if not _read_list(body, before, growing):
            kept.append(text[at:end])
            at = end
            continue
        before = body
        kept += text[at : match.end() - 1], f'"{_MARK}{len(lists)}"'
        lists.append(growing.runs())
        at = end + 1
    return "".join([*kept, text[at:]]), lists


def lifted(value: Any, lists: list[IdRuns]) -> IdRuns | None:
    """The list that a name stands for; None where the value is no name."""
    if lists and type(value) is str and value.startswith("\0"):
        return lists[int(value[1:])]
    return None


def _read_list(body: str, before: str, growing: GrowingRuns) -> bool:
    """Turn the numbers of one list into those of another that may begin with the same text."""
    same = body.rfind(",", 0, _common_length(body, before)) + 1
    try:
        rest = json.loads(f"[{body[same:]}]")
    except (ValueError, RecursionError):
        return False
    if not set(map(type, rest)) <= {int} or (same and not rest):
        return False
    if rest and not 0 <= min(rest) <= max(rest) < ID_BOUND:
        return False
    growing.cut(body.count(",", 0, same))
    growing.extend(rest)
    return True


def _common_length(one: str, other: str) -> int:
    """Characters that two texts begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low
