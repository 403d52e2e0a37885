"""Where windows and states are kept beyond the GPU's memory, and what is computed again without.

The report's strategies (arXiv:2606.19348, 3.5.2; bounded replay is V4.1's), this toolkit's, and
the places at which SGLang 0.5.23, vLLM 0.33.0 and LMCache 0.5.6 keep theirs: one rule of three
numbers for all.
"""

import re
from dataclasses import dataclass

from dsv4kv.choices import TIER_WINDOWS, unknown
from dsv4kv.engines.rule import kept_places
from dsv4kv.errors import ConfigError

BOUNDED = "zero:bounded"


@dataclass(frozen=True)
class Windows:
    """Places in a prompt after which requests can resume."""

    name: str  # as users write it
    period_tokens: int = 0  # at every multiple of it; 0 nowhere
    end: tuple[int, int] | None = None
    """Where prompts end, floored to a multiple of the first number, so many tokens before the
    end as the second says; None nowhere."""
    junctions: bool = False  # where what an earlier prompt left ends
    replay_tokens: int = 0
    """Tokens before the end of a hit that are computed again, for want of a window; 0 where
    windows are kept."""
    exact: bool = True  # whether that gives the bits of a run that never left

    def places(self, prompt_tokens: int, resumed_tokens: int, found_tokens: int) -> list[int]:
        """Where a prompt leaves windows and states while it is computed, rising.

        Args:
            prompt_tokens: Its length.
            resumed_tokens: Where computing began.
            found_tokens: Tokens of it whose pages were found.
        """
        places = kept_places(prompt_tokens, self.period_tokens, self.end)
        if self.junctions:
            places.add(found_tokens)
        return sorted(place for place in places if place > resumed_tokens)


def parse_windows(text: str, *, block_tokens: int, window_tokens: int, layers: int) -> Windows:
    """Read what users write, one of ``choices.TIER_WINDOWS``.

    Args:
        text: What is written.
        block_tokens: Of a block of the cache; what is computed again begins where one does.
        window_tokens: Of a window; 0 where a model has none (DeepSeek-V3.2): nothing but pages is
            needed to resume, wherever it is.
        layers: Layers of the model: an exact window takes a window of tokens for each.

    Raises:
        ConfigError: There is no such strategy.
    """
    if not window_tokens:
        return Windows(text, period_tokens=block_tokens)
    name, _, number = text.partition(":")
    if re.fullmatch("[0-9]{1,9}", number):
        return _with_number(text, name, int(number), block_tokens)
    replay = -(-window_tokens * layers // block_tokens) * block_tokens
    plain = {
        "full": Windows(text, period_tokens=block_tokens),
        "zero": Windows(text, replay_tokens=replay),
        BOUNDED: Windows(text, replay_tokens=window_tokens - 1, exact=False),
        "ends": Windows(text, end=(1, 0)),
        "ends+junctions": Windows(text, end=(1, 0), junctions=True),
        "sglang": Windows(text, end=(block_tokens, 0)),
        "vllm:dense": Windows(text, period_tokens=block_tokens),
    }
    if text not in plain:
        raise unknown(TIER_WINDOWS, text, "a strategy for windows")
    return plain[text]


def _with_number(text: str, name: str, tokens: int, block_tokens: int) -> Windows:
    # behind vLLM a hit leaves the last token to be computed
    ends = {"vllm": (block_tokens, 1), "periodic": None, "lmcache": None}
    if name not in ends:
        raise unknown(TIER_WINDOWS, text, "a strategy for windows")
    if not tokens and ends[name] is None:
        raise ConfigError(f"{text} has no period: write {name}:4096.")
    return Windows(text, period_tokens=tokens, end=ends[name])
