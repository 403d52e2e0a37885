"""What a model keeps beside its context: tables of windows and states, in parts that are cached.

Prompts are numbers of blocks to them. Source: vLLM 0.33, ``single_type_kv_cache_manager.py``.
"""

from dataclasses import dataclass, replace

from dsv4kv.core.paths import NumberedPaths
from dsv4kv.engines.speculation import Speculation
from dsv4kv.prefix.paths import PathTable, number_prompts

UNBOUNDED_TOKENS = 1 << 40
"""Of the one block of a ring: more than a request has."""


@dataclass(frozen=True)
class Part:
    """Blocks in a row that are cached, found and evicted together, one after the other.

    Attributes:
        blocks: How many.
        end_tokens: Where the last one ends, from the end of a block of context.
        followed: Whether it is known by numbers that distinguish the tokens after it, too.
        drafts: Whether a draft's layer may be among them.
    """

    blocks: int
    end_tokens: int = 0
    followed: bool = False
    drafts: bool = False


@dataclass(frozen=True)
class TailGroup:
    """A table of window or state blocks.

    Attributes:
        block_tokens: Tokens of one of its blocks.
        needed: Blocks in a row that a hit needs at its end.
        cut: These, in parts, and what a draft needs beyond; empty for one part.
        cached: Whether others can find them; else a request that hits computes the needed ones
            again, in blocks of its own.
        seen_tokens: Tokens before the next one that it sees: what is before them is given back.
            None for all tokens of the needed blocks.
    """

    block_tokens: int
    needed: int
    cut: tuple[Part, ...] = ()
    cached: bool = True
    seen_tokens: int | None = None

    @property
    def ring(self) -> bool:
        """Whether it is one block of a request, however many tokens this has."""
        return self.block_tokens >= UNBOUNDED_TOKENS

    @property
    def seen(self) -> int:
        """Tokens before the next one that it sees."""
        return self.tail_tokens if self.seen_tokens is None else self.seen_tokens

    def start(self, position: int) -> int:
        """Tokens before the blocks that are held behind so many computed ones.

        Source: vLLM 0.33, ``single_type_kv_cache_manager.py``: ``remove_skipped_blocks``.
        """
        return max(0, position - self.seen) // self.block_tokens * self.block_tokens

    @property
    def tail_tokens(self) -> int:
        """Tokens that the needed blocks cover."""
        return self.needed * self.block_tokens

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is cached together, in order."""
        return (self.cut or (Part(self.needed),)) if self.cached else ()


def cut_groups(
    groups: tuple[TailGroup, ...], speculation: Speculation, drafting: frozenset[int]
) -> tuple[TailGroup, ...]:
    """Groups as an engine that drafts asks for them.

    Where keys cover tokens behind a block, the last block of a tail is one that prompts which part
    there do not share, and those before it are shared. A group with a draft's layer, of whose hit
    the last block is given up, needs one block more, behind the hit.

    Args:
        groups: Without drafts.
        speculation: How it drafts.
        drafting: Places of the groups that may have a draft's layer.
    """

    def cut(number: int, group: TailGroup) -> tuple[Part, ...]:
        if speculation.key_tokens and group.needed > 1:
            before = Part(group.needed - 1, -group.block_tokens, followed=True)
            return before, Part(1)
        if speculation.drops and number in drafting:
            ends = range((1 - group.needed) * group.block_tokens, 1, group.block_tokens)
            tail = (Part(1, end, drafts=True) for end in ends)
            return *tail, Part(1, group.block_tokens, followed=True, drafts=True)
        return ()

    return tuple(replace(group, cut=cut(number, group)) for number, group in enumerate(groups))


def number_ways(
    table: PathTable,
    size: int,
    groups: tuple[TailGroup, ...],
    key_tokens: int,
    known: NumberedPaths | None = None,
) -> tuple[NumberedPaths, NumberedPaths]:
    """All prompts of a trace as numbers of blocks.

    Args:
        table: The trace.
        size: Tokens of a block of context.
        groups: Tables that ask for parts.
        key_tokens: Tokens after a block of context that its key covers.
        known: The numbers of context, if they are known already.

    Returns:
        Numbers of context, and numbers that also distinguish the tokens after a block, where a
        part of a table asks for that; else the same.
    """
    context = known or number_prompts(table, size, key_tokens)
    ends = [max(0, part.end_tokens) for group in groups for part in group.parts if part.followed]
    return context, number_prompts(table, size, max(ends)) if ends else context
