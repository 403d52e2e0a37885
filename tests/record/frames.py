"""Messages as engines publish them, and files of those that engines' own classes published."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dsv4kv.record import Veil
from dsv4kv.record.events import Publisher, Sequence
from dsv4kv.record.folder import Record, Recording, read_stream, segments

PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "kv_events"
SAMPLES = (
    "vllm_0.33_v4_groups", "vllm_0.33_full_attention_block16_evictions",
    "sglang_0.5.23_radix_page256",
)  # fmt: skip

needs_samples = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason=f"no published events in {PUBLISHED}"
)

Frames = list[bytes]


def sample(name: str) -> list[Frames]:
    """Messages that an engine's publisher sent."""
    content = (PUBLISHED / f"{name}.frames.msgpack").read_bytes()
    return msgspec.msgpack.decode(content, type=list[list[bytes]])


def frames(number: int, *events: Any, at_s: float | None = None, rank: int = 0) -> Frames:
    """One message."""
    batch = [float(number) if at_s is None else at_s, list(events), rank]
    return [b"kv-events", number.to_bytes(8, "big"), msgspec.msgpack.encode(batch)]


def stored(hashes: list[Any], parent: Any, tokens: list[Any], size: int, **more: Any) -> Record:
    """An event about blocks."""
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent}
    return event | {"token_ids": tokens, "block_size": size, "lora_id": None} | more


def removed(*hashes: Any, **more: Any) -> Record:
    """An event about blocks that are gone."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes)} | more


CLEARED: Record = {"type": "AllBlocksCleared"}


def recorded(folder: Path, messages: list[Frames], **options: Any) -> list[Record]:
    """What is written of messages, without any socket."""
    with Recording(folder) as recording:
        publisher = Publisher(0, recording, Veil(recording.salt))
        sequence = Sequence(after=publisher.came, **options)
        for message in messages:
            publisher.write(sequence.take(message))
        publisher.write(sequence.give_up(at_once=True))
    return list(read_stream(folder, "events"))


def written(folder: Path, stream: str, *rows: Record, **options: Any) -> Path:
    """Record some rows; returns the last file of their stream."""
    with Recording(folder, **options) as recording:
        for row in rows:
            recording.write(stream, row)
    return segments(folder, stream)[-1]
