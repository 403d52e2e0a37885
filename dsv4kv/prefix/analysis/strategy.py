"""What is kept of windows and compressor states beside cached blocks, and where a hit resumes.

A block of compressed entries is of no use for going on alone: the next token also needs the last
window of entries and the pending compressor state. Source: arXiv:2606.19348 §3.5.2 (full,
periodic, zero); the bounded replay of DeepSeek-V4.1; checkpoints at the ends of prompts and where
prompts part are policies of this toolkit.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dsv4kv.errors import ConfigError

Kind = Literal["full", "periodic", "zero", "ends", "ends+junctions"]
STRATEGIES = ("full", "periodic:TOKENS", "zero", "zero:bounded", "ends", "ends+junctions")
"""As users write them."""
_PLAIN: dict[str, Kind] = {
    "full": "full",
    "ends": "ends",
    "ends+junctions": "ends+junctions",
}


@dataclass(frozen=True)
class Strategy:
    """One way to keep windows and states.

    Attributes:
        name: As users write it.
        kind: ``full`` keeps every window entry; ``periodic`` a checkpoint at every multiple of
            ``period_tokens``; ``zero`` none; ``ends`` one at the end of every prompt;
            ``ends+junctions`` also one where an earlier prompt ran out of checkpoints.
        window_tokens: Window tokens of a checkpoint.
        period_tokens: For ``periodic``.
        replay_tokens: For ``zero``: tokens before the end of a hit that are computed again.
    """

    name: str
    kind: Kind
    window_tokens: int = 128
    period_tokens: int = 0
    replay_tokens: int = 0

    @property
    def keeps_marks(self) -> bool:
        """Whether it depends on earlier requests where a hit can resume."""
        return self.kind in ("ends", "ends+junctions")

    def resume_tokens(self, found_tokens: int, held: Sequence[int]) -> int:
        """Where computing can go on.

        Args:
            found_tokens: Whole cached blocks of the prompt, in tokens.
            held: Positions of checkpoints that are there on the prompt's path, rising.

        Returns:
            Tokens that need not be computed; for ``zero`` net of those computed again.
        """
        match self.kind:
            case "full":
                return found_tokens
            case "periodic":
                return found_tokens // self.period_tokens * self.period_tokens
            case "zero":
                return max(0, found_tokens - self.replay_tokens)
            case _:
                return max((place for place in held if place <= found_tokens), default=0)

    def places_to_keep(
        self, resumed_tokens: int, found_tokens: int, prompt_tokens: int
    ) -> tuple[int, ...]:
        """Positions at which a prompt leaves checkpoints while it is computed.

        Args:
            resumed_tokens: Where computing began.
            found_tokens: Whole cached blocks that it found.
            prompt_tokens: Its length, already cut to where a later prompt can part from it.
        """
        match self.kind:
            case "periodic":
                period = self.period_tokens
                first = (found_tokens // period + 1) * period
                return tuple(range(first, prompt_tokens + 1, period))
            case "ends" if prompt_tokens > resumed_tokens:
                return (prompt_tokens,)
            case "ends+junctions":
                if resumed_tokens >= found_tokens or found_tokens == prompt_tokens:
                    return (prompt_tokens,) if prompt_tokens > resumed_tokens else ()
                wanted = sorted((found_tokens, prompt_tokens))
                return tuple(place for place in wanted if place > resumed_tokens)
            case _:
                return ()


def parse_strategy(text: str, *, window_tokens: int, layers: int) -> Strategy:
    """Read a strategy as users write it.

    ``zero`` computes the last ``window_tokens`` × ``layers`` tokens again, which is exact.
    ``zero:bounded`` computes one window that ends with the first new token, the earlier tokens'
    own windows cut off.

    Raises:
        ConfigError: There is no such strategy.
    """
    if match := re.fullmatch(r"periodic:([0-9]{1,9})", text):
        if not int(match[1]):
            raise ConfigError("periodic:0 has no period: write periodic:4096.")
        return Strategy(text, "periodic", window_tokens, period_tokens=int(match[1]))
    if text == "zero":
        return Strategy(text, "zero", window_tokens, replay_tokens=window_tokens * layers)
    if text == "zero:bounded":
        return Strategy(text, "zero", window_tokens, replay_tokens=window_tokens - 1)
    if text in _PLAIN:
        return Strategy(text, _PLAIN[text], window_tokens)
    raise ConfigError(f"{text!r} is no strategy: take {', '.join(STRATEGIES)}.")
