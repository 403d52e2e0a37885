"""Prompts as paths of block ids: which request touched a block last, and numbers for blocks.

An id stands for a block *and its history*, so the paths form a tree in which every id has one
parent.  What one request touched together stays together in the order of recency: a prompt meets
its past as a few *stretches*, each last touched by one earlier request (its owner).
"""

from bisect import bisect_right


class BlockPaths:
    """Paths of a trace, cut into blocks of one size."""

    def __init__(
        self,
        # first ids of all runs of consecutive ids, blocks of a path up to a run's end, and where
        # every path's runs begin
        runs: tuple[list[int], list[int], list[int]],
        lengths: list[int],  # tokens of every path
        id_tokens: int,  # tokens of an id
        block_tokens: int,  # tokens of a block: a divisor of these or a multiple
        *,
        whole_blocks: bool,  # leave a partial last block out
        # tokens after a block that distinguish it, too; a whole block without them is dropped.
        # Prompts part where their ids do
        key_tokens: int,
    ) -> None:
        self._starts, self._ends, self._offsets = runs
        self._lengths, self._id, self._block = lengths, id_tokens, block_tokens
        self._key, self._per_id = key_tokens, max(1, id_tokens // block_tokens)
        self.tokens = lengths  # tokens of every path; its last block may be partial
        if whole_blocks:
            self.tokens = [max(0, n - key_tokens) // block_tokens * block_tokens for n in lengths]
        # blocks of every path
        self.blocks = [-(-tokens // block_tokens) for tokens in self.tokens]
        self._owners: dict[int, int] = {}  # by the first block of every stretch

    def meet(self, request: int) -> list[tuple[int, int, int]]:
        """The past of a request as (owner, begin, end), its own from now on; in order, once."""
        owners, blocks, begin = self._owners, self.blocks[request], 0
        past = list[tuple[int, int, int]]()
        while begin < blocks:
            owner = owners.pop(self._name(request, begin), -1)
            if owner < 0:
                break
            end = self._common(request, owner)
            if end < self.blocks[owner]:  # the owner keeps what follows
                owners[self._name(owner, end)] = owner
            past.append((owner, begin, end))
            begin = end
        if blocks:
            owners[self._name(request, 0)] = request
        return past

    def stretches(self) -> list[list[int]]:
        """Columns request, owner, begin, end, blocks more recent: Mattson's stack distances."""
        request_of, owners, begins, ends, above = (list[int]() for _ in range(5))
        recency = _Recency(len(self.blocks))
        for request in range(len(self.blocks)):
            past = self.meet(request)
            for owner, begin, end in past:
                request_of.append(request)
                owners.append(owner)
                begins.append(begin)
                ends.append(end)
                above.append(recency.more_recent(owner))
            for owner, begin, end in past:
                recency.add(owner, begin - end)
            recency.add(request, self.blocks[request])
        return [request_of, owners, begins, ends, above]

    def _name(self, request: int, block: int) -> int:
        size, length, low = self._block, self._lengths[request], self._offsets[request]
        end, high, tokens = (block + 1) * size, self._offsets[request + 1], 0
        if end > length:  # partial: another block than the one it would fill
            place, tokens = self._ends[high - 1] - 1, length % size
        else:
            place = (end + self._key - 1) // self._id
        run = bisect_right(self._ends, place, low, high)
        number = self._starts[run] + place - (self._ends[run - 1] if run > low else 0)
        return (number * self._per_id + block % self._per_id) * size + tokens

    def _common(self, one: int, other: int) -> int:
        """Leading blocks that two requests share; a partial one only where both are equal."""
        starts, ends = self._starts, self._ends
        first, second = self._offsets[one], self._offsets[other]
        low, high = 0, min(self._offsets[one + 1] - first, self._offsets[other + 1] - second)
        while low < high:  # where runs begin alike, all before them is
            middle = (low + high + 1) // 2
            if starts[first + middle - 1] == starts[second + middle - 1]:
                low = middle
            else:
                high = middle - 1
        shared = min(ends[first + low - 1], ends[second + low - 1]) * self._id if low else 0
        mine, theirs = self._lengths[one], self._lengths[other]
        shared = min(shared, mine, theirs)
        if shared == mine == theirs:
            return self.blocks[one]
        return max(0, shared - self._key) // self._block


class _Recency:
    """How many blocks each request touched last, with sums over later requests (Fenwick tree)."""

    def __init__(self, requests: int) -> None:
        self._tree = [0] * (requests + 1)
        self._total = 0

    def add(self, request: int, blocks: int) -> None:
        tree, at, end = self._tree, request + 1, len(self._tree)
        self._total += blocks
        while at < end:
            tree[at] += blocks
            at += at & -at

    def more_recent(self, request: int) -> int:
        tree, at, older = self._tree, request + 1, 0
        while at:
            older += tree[at]
            at &= at - 1
        return self._total - older


class NumberedPaths:
    """Prompts as numbers of blocks, in order of first use: equal numbers, equal history.

    A path is the beginning of an earlier one and numbers of its own, so memory does not grow
    with its length.
    """

    def __init__(self, paths: BlockPaths) -> None:
        self.count = 0  # how many different numbers there are
        self._owner: list[int] = []
        self._shared: list[int] = []  # blocks at the beginning of the owner's path
        self._first: list[int] = []  # number of the first block after these
        self._blocks = paths.blocks
        self._asked, self._path = -1, list[int]()
        for request in range(len(paths.blocks)):
            owner, shared = -1, 0
            past = paths.meet(request)
            if past:
                owner, _, shared = past[-1]
                while owner >= 0 and self._shared[owner] >= shared:  # they are of its own owner
                    owner = self._owner[owner]
            self._owner.append(owner)
            self._shared.append(shared)
            self._first.append(self.count)
            self.count += paths.blocks[request] - shared

    def __len__(self) -> int:
        return len(self._blocks)

    def path(self, request: int) -> list[int]:
        """The numbers of a request's blocks; not to be changed."""
        if request == self._asked:
            return self._path
        self._asked = request
        pieces, end = list[tuple[int, int]](), self._blocks[request]
        while request >= 0:
            shared = self._shared[request]
            first = self._first[request]
            pieces.append((first, first + end - shared))
            end, request = shared, self._owner[request]
        pieces.reverse()
        self._path = list[int]()
        for begin, stop in pieces:
            self._path += range(begin, stop)
        return self._path
