"""Why tokens of a prompt that were computed before are computed again."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Losses:
    """Tokens that an unbounded cache without rules would have hit, by what they were lost to.

    Attributes:
        evicted_block: Their block had been evicted.
        evicted_checkpoint: Their block was there; a checkpoint of window and state was too, once.
        no_checkpoint: Their block was there, and no checkpoint that far was ever written.
        draft: What a draft's layer needs behind them is not what the cache has.
        alignment: They are no whole block, page or period of the rule.
        last_token: A hit must leave the last token of a prompt to be computed.
        replay: Computed again to have the window.
        collision_guard: Their hash was found with other tokens behind it.
    """

    evicted_block: int = 0
    evicted_checkpoint: int = 0
    no_checkpoint: int = 0
    draft: int = 0
    alignment: int = 0
    last_token: int = 0
    replay: int = 0
    collision_guard: int = 0

    @property
    def total(self) -> int:
        """All tokens lost."""
        return sum(getattr(self, reason.name) for reason in fields(self))

    def __add__(self, other: "Losses") -> "Losses":
        return Losses(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )
