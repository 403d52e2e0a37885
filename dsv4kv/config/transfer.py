"""What ``dsv4kv bench transfer`` runs: a prefill cache, a decode cache, and the way between.

The descriptions of the fields are the documentation.
"""

from typing import Annotated

from pydantic import Field

from dsv4kv.choices import Choice, explained
from dsv4kv.config.bench import Formats, NonNegative, OneOf, Positive, SecondsAboveZero, Section
from dsv4kv.model.schema import StateFormat

TRANSPORTS = {
    "shm": Choice("shared memory, on one machine"),
    "tcp": Choice("a socket, on one machine or between two"),
}
"""How ``bench transfer`` gets bytes from a prefill cache to a decode cache."""


class SideSection(Section):
    """One of the two caches."""

    block_tokens: Annotated[int, Field(gt=0, multiple_of=128)] = 256
    """Tokens of a block; the two caches may differ."""
    draft_tokens: NonNegative = 0
    """Drafts that may be rolled back: rings have as many rows more, and may differ, too."""
    formats: Formats = Formats()
    """Entry formats; caches that differ are refused."""


class TransferConfig(Section):
    """Two caches, a request that moves from one to the other, and how that is timed."""

    name: str = "transfer"
    """Name of the run."""
    transport: Annotated[str, OneOf(TRANSPORTS, "all")] = Field(
        "all", description=f"How bytes move: all that can be had, {explained(TRANSPORTS)}."
    )
    connections: Annotated[int, Field(gt=0, le=16)] = 1
    """Sockets that families are read over concurrently."""
    merge: bool = True
    """Neighbouring stretches are read as one."""
    model: str = "v4-flash"
    """Model whose layers are cached: a shipped preset or a Hugging Face config.json."""
    layers: tuple[NonNegative, ...] | None = (0, 1, 2, 3, 4, 5)
    """Layers that both caches hold; null for all."""
    draft_layers: bool = False
    """Also hold the draft (MTP) layers, whose windows must not be lost."""
    state: StateFormat = "ring"
    """HCA compressor state: a ring of 128 rows, or the running softmax."""
    tokens: Positive = 4099
    """Tokens of the prompt that is computed, moved and decoded on."""
    timed_tokens: Positive = 65_536
    """Tokens of the request whose reads are timed: its pages hold what is drawn, not computed."""
    chunk_tokens: Positive = 2048
    """Tokens of a prompt chunk; chunks of two prompts alternate, so blocks come in such runs."""
    prefill: SideSection = SideSection()
    """The cache that computes the prompt."""
    decode: SideSection = SideSection()
    """The cache that decodes it."""
    ranks: Positive = 1
    """Ranks of the decode side: all hold the same bytes, and one of them reads them."""
    decode_steps: Positive = 4
    """Steps that both go on for; everything they read is compared."""
    rounds: Annotated[int, Field(ge=6)] = 15
    """How often the request is read to be timed."""
    timeout_s: SecondsAboveZero = 60.0
    """Longest time without an answer, in seconds."""
    seed: NonNegative = 0
    """Seed of all data."""
