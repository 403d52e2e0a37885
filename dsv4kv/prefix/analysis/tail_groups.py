"""Tables of windows and states beside the context, and what of them a hit asks for."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from dsv4kv.prefix.analysis.nodes import NumberedPaths, number_paths
from dsv4kv.prefix.analysis.paths import Ints, PathTable
from dsv4kv.prefix.analysis.reuse import find_reuse
from dsv4kv.prefix.analysis.speculation import Speculation


class Way(NamedTuple):
    """A prompt as numbers of its whole blocks.

    Attributes:
        context: int64: as the context's table knows them.
        beside: int64: told apart by other tokens behind them, where a part of a table asks for it;
            else the same.
    """

    context: Ints
    beside: Ints


@dataclass(frozen=True)
class Part:
    """Blocks in a row that are cached, found and evicted together, one after the other.

    Attributes:
        blocks: How many.
        end_tokens: Where the last one ends, from the end of a block of context.
        beside: By which numbers of ``Way`` it is known.
        drafts: Whether a draft's layer may be among them.
    """

    blocks: int
    end_tokens: int = 0
    beside: bool = False
    drafts: bool = False

    def numbers(self, way: Way) -> Ints:
        """Its numbers in a prompt."""
        return way.beside if self.beside else way.context


@dataclass(frozen=True)
class TailGroup:
    """A table of window or state blocks.

    Attributes:
        block_tokens: Tokens of one of its blocks.
        needed: Blocks in a row that a hit needs at its end.
        cut: These, in parts, and what a draft needs beyond; empty for one part.
    """

    block_tokens: int
    needed: int
    cut: tuple[Part, ...] = ()

    @property
    def tail_tokens(self) -> int:
        """Tokens that the needed blocks cover."""
        return self.needed * self.block_tokens

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is cached together, in order."""
        return self.cut or (Part(self.needed),)


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
            before = Part(group.needed - 1, -group.block_tokens, beside=True)
            return before, Part(1)
        if speculation.drops and number in drafting:
            ends = range((1 - group.needed) * group.block_tokens, 1, group.block_tokens)
            tail = (Part(1, end, drafts=True) for end in ends)
            return *tail, Part(1, group.block_tokens, beside=True, drafts=True)
        return ()

    return tuple(replace(group, cut=cut(number, group)) for number, group in enumerate(groups))


def number_ways(
    table: PathTable, size: int, groups: tuple[TailGroup, ...], key_tokens: int
) -> tuple[list[Way], int]:
    """All prompts of a trace as numbers of blocks, and how many numbers there are.

    Args:
        table: The trace.
        size: Tokens of a block of context.
        groups: Tables that ask for parts.
        key_tokens: Tokens behind a block of context that its key covers.
    """
    context = _number(table, size, key_tokens)
    ends = [max(0, part.end_tokens) for group in groups for part in group.parts if part.beside]
    beside = _number(table, size, max(ends)) if ends else context
    ways = [Way(*pair) for pair in zip(context.paths, beside.paths, strict=True)]
    return ways, max(context.count, beside.count)


def _number(table: PathTable, size: int, key_tokens: int) -> NumberedPaths:
    return number_paths(find_reuse(table, size, whole_blocks=True, key_tokens=key_tokens))
