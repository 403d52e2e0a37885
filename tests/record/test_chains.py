"""From a server's events come the chains of its prompts, and what of them was cached."""

import json
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from dsv4kv.errors import TraceError
from dsv4kv.record.convert import Store, find_stores, read_recording
from dsv4kv.record.folder import Record, Recording
from tests.record import frames as made
from tests.record.frames import Frames, frames, recorded, removed, stored


def stores(folder: Path, messages: Iterable[Frames]) -> list[Store]:
    return find_stores(recorded(folder, list(messages)))


def asked(name: str) -> list[dict[str, Any]]:
    """What was asked of the engine's own cache, and what it answered."""
    (path,) = made.PUBLISHED.glob(f"{name}.requests.json*")
    text = path.read_text()
    rows = json.loads(text) if path.suffix == ".json" else map(json.loads, text.splitlines())
    return list(rows)


def lengths(found: Iterable[Store]) -> list[tuple[int, int, int]]:
    return [(store.end.tokens, store.cached_tokens, store.output_tokens) for store in found]


BLOCK = {made.SAMPLES[0]: 256, made.SAMPLES[1]: 16, made.SAMPLES[2]: 256}
UNSEEN = {made.SAMPLES[0]: {2}}  # cached as a whole: it leaves no event


def order(kind: str, messages: list[Frames]) -> list[Frames]:
    """The same messages as a network may give them."""
    swapped = [messages[number ^ 1] for number in range(len(messages) & ~1)]
    return {
        "as sent": messages, "swapped": swapped + messages[len(swapped) :],
        "twice": [message for message in messages for _ in range(2)],
        "all again": messages + messages,
    }[kind]  # fmt: skip


@made.needs_samples
@pytest.mark.parametrize("kind", ["as sent", "swapped", "twice", "all again"])
@pytest.mark.parametrize("name", made.SAMPLES)
def test_prompts_and_hits_are_as_the_engine_told(name: str, kind: str, tmp_path: Path) -> None:
    size = BLOCK[name]
    seen = [row for n, row in enumerate(asked(name)) if n not in UNSEEN.get(name, ())]
    expected = [(row["prompt_tokens"] // size * size, row["cached_tokens"], 0) for row in seen]
    assert lengths(stores(tmp_path / "recording", order(kind, made.sample(name)))) == expected


@made.needs_samples
@pytest.mark.parametrize("name", made.SAMPLES)
def test_prompts_share_ids_as_far_as_they_share_tokens(name: str, tmp_path: Path) -> None:
    found = stores(tmp_path / "recording", made.sample(name))
    seen = set[int]()
    for store in found:
        ids = store.ids
        assert len(ids) * store.grain_tokens == store.end.tokens
        assert len(set(ids)) == len(ids)
        known = [one in seen for one in ids]
        # nothing of these samples was evicted and asked for again
        shared = sum(known) * store.grain_tokens
        assert shared // BLOCK[name] * BLOCK[name] == store.cached_tokens
        assert known == sorted(known, reverse=True)
        seen.update(ids)


def block(number: int, size: int = 16) -> list[int]:
    return list(range(number * size, number * size + size))


def on(medium: str) -> Record:
    return stored([1], None, block(0), 16, medium=medium)


BOTH = stored([1, 2], None, block(0, 32), 16, group_idx=0)
WINDOW = stored([2], 1, block(1), 16, group_idx=1, kv_cache_spec_sliding_window=128)
# events of every message; prompt, cached and generated tokens of every request
CHAINS: dict[str, tuple[list[list[Record]], list[tuple[int, int, int]]]] = {
    "single blocks behind a request are generated, others part from it": (
        [[stored([1, 2], None, block(0, 32), 16)], [stored([3], 2, block(2), 16)],
         [stored([4], 3, block(3), 16)], [stored([5], 2, block(4), 16)]],
        [(32, 0, 32), (48, 32, 0)],
    ),
    "stretches of one step that follow each other are one request": (
        [[stored([1, 2], None, block(0, 32), 16), stored([3], 2, block(2), 16)]], [(48, 0, 0)],
    ),
    "evicted blocks are not cached, those that other groups lost are": (
        [[BOTH, WINDOW], [removed(2, group_idx=1)], [BOTH], [removed(2, group_idx=0)], [BOTH],
         [made.CLEARED], [BOTH]],
        [(32, 0, 0), (32, 32, 0), (32, 16, 0), (32, 0, 0)],
    ),
    "what is stored elsewhere is not cached on the GPU": (
        [[on("CPU")], [on("GPU")], [removed(1, medium="CPU")], [on("GPU")]],
        [(16, 0, 0), (16, 16, 0)],
    ),
    "blocks of single tokens are chains by the server's names": (
        [[stored([1, 2, 3], None, [5, 6, 7], 1)], [stored([4, 5], 2, [8, 9], 1)]],
        [(3, 0, 0), (4, 2, 0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_events_are_the_requests_that_they_began(name: str, tmp_path: Path) -> None:
    messages, expected = CHAINS[name]
    sent = [frames(number, *events) for number, events in enumerate(messages)]
    assert lengths(stores(tmp_path / "recording", sent)) == expected


def test_a_chain_whose_beginning_was_not_seen_is_known_as_such(tmp_path: Path) -> None:
    found = find_stores(
        recorded(
            tmp_path / "recording",
            [
                frames(0, stored([8, 9], 7, block(0, 32), 16)),
                frames(1, stored([10, 11], 9, block(1, 32), 16)),
                frames(2, stored([18, 19], 17, block(0, 32), 16)),
            ],
        )
    )
    assert found[1].ids[:2] == found[0].ids
    assert set(found[2].ids).isdisjoint(found[0].ids)  # equal tokens behind other ones


def _behind(parents: Iterable[int | None], first: int) -> Record:
    """A record in which two blocks are stored behind each of the others."""
    new = count(first)
    events = [
        {"stored": [next(new), next(new)], "parent": parent, "chain": True, "size": 64}
        for parent in parents
    ]
    return {"source": "events:0", "ts": 0.0, "events": events}


def test_one_message_may_begin_tens_of_thousands_of_requests() -> None:
    begun_s = process_time()
    roots = _behind([None] * 40_000, 0)
    stores = find_stores([roots, _behind(range(1, 80_000, 2), 80_000)])
    assert len(stores) == 80_000
    assert process_time() - begun_s < 10


def test_prompts_of_gigabytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv4kv.record.convert._MOST_HELD", 5_000)
    whole = {"stored": list(range(1000)), "parent": None, "chain": True, "size": 64}
    with Recording(tmp_path / "server") as recording:
        recording.write("events", {"source": "events:0", "ts": 0.0, "events": [whole]})
        recording.write("events", _behind([999] * 3, 1000))
        recording.sync()
        assert len(read_recording(tmp_path / "server").requests) == 4
        recording.write("events", _behind([999] * 3, 2000))
    with pytest.raises(TraceError, match="its events have over 5,000 ids, each with"):
        read_recording(tmp_path / "server")
