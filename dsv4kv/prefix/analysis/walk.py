"""Walking a prompt down the tree of all prompts before it, one stretch at a time."""

import numpy as np

from dsv4kv.prefix.analysis.paths import Path, PathTable


class Shape:
    """Paths cut into blocks of one size, and names for the blocks.

    Attributes:
        blocks: Blocks of every path.
        tokens: int64[requests]: tokens of every path.
        key_tokens: Tokens behind a block that it is told apart by, too.
    """

    def __init__(
        self, table: PathTable, grain_tokens: int, *, whole_blocks: bool, key_tokens: int = 0
    ) -> None:
        """Cut the paths.

        Args:
            table: The trace.
            grain_tokens: Tokens of a block.
            whole_blocks: Leave a partial last block out.
            key_tokens: Tokens behind a block that it is told apart by, too; a whole block
                without them is left out. Prompts part where their ids do.
        """
        self._table = table
        self._grain, self.key_tokens = grain_tokens, key_tokens
        self._per_id = max(1, table.block_tokens // grain_tokens)
        tokens = table.path_tokens
        whole = np.maximum(0, tokens - key_tokens) // grain_tokens * grain_tokens
        self.tokens = whole if whole_blocks else tokens
        self._lengths: list[int] = tokens.tolist()
        self.blocks: list[int] = (-(-self.tokens // grain_tokens)).tolist()

    def path(self, request: int) -> Path:
        """The path of a request."""
        return self._table.path(request)

    def common_blocks(self, one: int, other: int, paths: tuple[Path, Path]) -> int:
        """Leading blocks of two requests that hold the same tokens.

        A partial block is shared by equal prompts alone.
        """
        shared = paths[0].common_blocks(paths[1]) * self._table.block_tokens
        shared = min(shared, self._lengths[one], self._lengths[other])
        if shared == self._lengths[one] == self._lengths[other]:
            return self.blocks[one]
        return max(0, shared - self.key_tokens) // self._grain

    def name(self, request: int, path: Path, block: int) -> int:
        """A number that stands for a block and its history, whichever request it is seen in."""
        end = (block + 1) * self._grain
        if end > self._lengths[request]:  # partial: another block than the one it would fill
            last_id, tokens = int(path.ends[-1]) - 1, self._lengths[request] % self._grain
        else:
            last_id, tokens = (end + self.key_tokens - 1) // self._table.block_tokens, 0
        within = path.id_at(last_id) * self._per_id + block % self._per_id
        return within * self._grain + tokens


class Walker:
    """Remembers who touched every block last, by the first block of each stretch alone."""

    def __init__(self, shape: Shape) -> None:
        """Start with no past."""
        self._shape = shape
        self._owner_of: dict[int, int] = {}

    def meet(self, request: int) -> list[tuple[int, int, int]]:
        """The past of a request as (owner, begin, end), first block first; then it owns all of it.

        Call it once for every request, in order.
        """
        shape, owner_of = self._shape, self._owner_of
        path, blocks = shape.path(request), shape.blocks[request]
        past, begin = [], 0
        while begin < blocks:
            owner = owner_of.pop(shape.name(request, path, begin), None)
            if owner is None:
                break
            other = shape.path(owner)
            end = shape.common_blocks(request, owner, (path, other))
            if end < shape.blocks[owner]:  # the owner keeps what follows
                owner_of[shape.name(owner, other, end)] = owner
            past.append((owner, begin, end))
            begin = end
        if blocks:
            owner_of[shape.name(request, path, 0)] = request
        return past
