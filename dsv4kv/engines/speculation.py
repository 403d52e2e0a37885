"""What drafts do to prefix hits, by how they are made.

A draft layer's entry at a block's last position is computed from the token after it, so prompts
that diverge right after a block cannot share that block as it is. Engines either let the key of a
block cover that token, or give up what a hit matched last.
"""

from dataclasses import dataclass

from dsv4kv.choices import choose


@dataclass(frozen=True)
class Speculation:
    """How an engine that drafts finds prefixes.

    Attributes:
        explains: What it costs, in one line.
        setting: What a user of the engine writes to have it.
        key_tokens: Tokens after a block that its key covers.
        drops: Whether a hit gives up the last block that the draft's group matched.
    """

    explains: str
    setting: str
    key_tokens: int = 0
    drops: bool = False


SPECULATIONS: dict[str, Speculation] = {
    "none": Speculation("no drafts", "serving without drafts"),
    "dspark": Speculation("DSpark's drafts leave hits as they are", "drafting by DSpark"),
    "mtp": Speculation(
        "a block is identified together with the token after it",
        "MTP without a KV connector",
        key_tokens=1,
    ),
    "mtp+connector": Speculation(
        "a hit gives up the draft's last block", "MTP with a KV connector", drops=True
    ),
}
"""All ways to draft by name: vLLM 0.33 (``config/vllm.py``: ``num_hash_lookahead_tokens``;
``config/speculative.py``: ``use_eagle_block_drop``), SGLang 0.5.23 (``radix_cache.py``: keys of
pairs of tokens), each with one MTP module."""


def find_speculation(name: str) -> Speculation:
    """A way to draft by name; raises ``ConfigError`` with the names there are."""
    return choose(SPECULATIONS, name, "a speculation")
