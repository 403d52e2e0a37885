"""Where windows and compressor states are kept next to cached blocks.

A block of compressed entries is of no use for going on alone: the next token also needs the last
window of entries and the pending compressor state.  Source: arXiv:2606.19348 §3.5.2 (full,
periodic, zero); the bounded replay of DeepSeek-V4.1; checkpoints at the ends of prompts and where
prompts part are policies of this toolkit.
"""

from dataclasses import dataclass


def kept_places(prompt_tokens: int, period_tokens: int, end: tuple[int, int] | None) -> set[int]:
    """Tokens of a prompt behind which windows and states are kept, none of them 0.

    ``end`` is ``(grain, before)``: one ``before`` tokens before its end, floored to ``grain``.
    """
    places = set[int]()
    if period_tokens:
        places.update(range(period_tokens, prompt_tokens + 1, period_tokens))
    if end is not None:
        grain, before = end
        places.add((prompt_tokens - before) // grain * grain)
    return places - {0}


@dataclass(frozen=True)
class Strategy:
    """One way to keep windows and states."""

    name: str  # as users write it
    # ``full`` keeps every window entry; ``periodic`` a checkpoint at every multiple of
    # ``period_tokens``; ``zero`` none; ``ends`` one at the end of every prompt; ``ends+junctions``
    # also one where an earlier prompt ran out of checkpoints
    kind: str
    window_tokens: int = 128  # window tokens of a checkpoint
    period_tokens: int = 0  # for ``periodic``
    replay_tokens: int = 0  # for ``zero``: tokens before the end of a hit that are computed again

    @property
    def keeps_marks(self) -> bool:
        """Whether it depends on earlier requests where a hit can resume."""
        return self.kind in ("ends", "ends+junctions")

    def places_to_keep(
        self, resumed_tokens: int, found_tokens: int, prompt_tokens: int
    ) -> list[int]:
        """Where a prompt leaves checkpoints, rising; it found ``found_tokens`` in whole blocks."""
        if self.kind == "periodic":
            places = kept_places(prompt_tokens, self.period_tokens, None)
            return sorted([place for place in places if place > found_tokens])
        if not self.keeps_marks:
            return []
        places = kept_places(prompt_tokens, 0, (1, 0))
        if self.kind == "ends+junctions" and resumed_tokens < found_tokens:
            places.add(found_tokens)
        return sorted([place for place in places if place > resumed_tokens])
