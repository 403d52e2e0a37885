"""What ``dsv4kv bench tiers`` runs: which prefixes go where and come back.

The descriptions of the fields are the documentation.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, field_serializer, model_validator

from dsv4kv.choices import STORES, TIER_WINDOWS, explained
from dsv4kv.config.bench import ModelSection, NonNegative, Positive, Section
from dsv4kv.config.replay import CostSection
from dsv4kv.files import mask_secrets


class TiersConfig(Section):
    """Prefixes, the stores they go to, and what is compared with them."""

    name: str = "tiers"
    """Name of the run."""
    model: ModelSection = ModelSection()
    """The model whose cache is stored; fewer layers take less memory and time."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the cache is; ``auto`` takes a GPU where there is one."""
    block_tokens: Annotated[int, Field(gt=0, multiple_of=128)] = 256
    """Tokens of a block, and of a page in a store; engines take 256."""
    lengths: Annotated[tuple[Positive, ...], Field(min_length=1)] = (2048, 8192, 32768)
    """Prefixes, in tokens. The cache holds two of the longest, the stores one."""
    stores: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("memory", "file"),
        description="Where they go: memory and file, which take a place of their own, or a place, "
        f"as redis:HOST: {explained(STORES)}.",
    )
    folder: str | None = None
    """Where ``file`` writes, removed at the end; null takes a folder of the user's cache."""
    threads: Positive = 8
    """Files that are written and read concurrently."""
    windows: str = Field(
        "ends",
        description="Where windows and states are kept: "
        f"{explained(TIER_WINDOWS)}. Prefixes are stored at their ends, so it must keep the end "
        "of every length.",
    )
    rounds: Annotated[int, Field(ge=6)] = 7
    """Times that every prefix is stored, looked up and restored; fewer than 6 have no interval."""
    cost: CostSection = CostSection(gpus=1)
    """The GPUs on which computing a prompt again is modelled, as ``dsv4kv replay`` does."""
    prefill_tokens: Positive = 8192
    """Tokens of a step in which prompts are computed there."""
    seed: NonNegative = 0
    """Seed of all data."""

    @field_serializer("stores", when_used="json")
    def _without_secrets(self, stores: tuple[str, ...]) -> list[str]:
        return [mask_secrets(place) for place in stores]

    @model_validator(mode="after")
    def _one_of_a_kind(self) -> Self:
        kinds = [place.partition(":")[0] for place in self.stores]
        if len(set(kinds)) < len(kinds):
            raise ValueError(
                f"stores ({', '.join(kinds)}) names a kind twice, and tables would not show "
                "which is which: run them one after the other"
            )
        return self
