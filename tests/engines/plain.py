"""The engines' prefix caches restated block by block, as slowly and plainly as can be."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dsv4kv.engines.rule import Group
from tests.replay.texts import BLOCK, Text, visible_blocks


class PlainVllm:
    """A free queue of numbered blocks; every cached block has a name, copies stay apart."""

    def __init__(self, blocks: int, grain: int) -> None:
        self.queue: OrderedDict[int, None] = OrderedDict((block, None) for block in range(blocks))
        self.name_of: dict[int, Text] = {}
        self.copies: dict[Text, list[int]] = {}
        self.grain = grain

    def serve(self, prompt: Text) -> int:
        names = visible_blocks(prompt, self.grain, BLOCK, whole=True)
        held: list[int] = []
        for name in names[: (len(prompt) - 1) // self.grain]:
            if not self.copies.get(name):
                break
            held.append(self.copies[name][0])
        hits = len(held)
        for block in held:
            del self.queue[block]
        held += [self.take() for _ in range(-(-len(prompt) // self.grain) - hits)]
        for block, name in list(zip(held, names, strict=False))[hits:]:
            self.name_of[block] = name
            self.copies.setdefault(name, []).append(block)
        for block in reversed(held):
            self.queue[block] = None
            if block not in self.name_of:
                self.queue.move_to_end(block, last=False)
        return hits

    def take(self) -> int:
        block, _ = self.queue.popitem(last=False)
        if name := self.name_of.pop(block, None):
            self.copies[name].remove(block)
        return block


class PlainVllmGroups(PlainVllm):
    """Tables of context, windows and states over one queue; a name is (group, block)."""

    def __init__(
        self, blocks: int, grain: int, groups: Sequence[Group], retention: int | None, chunk: int
    ) -> None:
        super().__init__(blocks, grain)
        self.groups, self.retention, self.chunk = groups, retention, chunk

    def names(self, prompt: Text, number: int) -> list[Text]:
        size = self.grain if not number else self.groups[number - 1].block_tokens
        blocks = visible_blocks(prompt, size, size, whole=True)
        return [(number, *block) for block in blocks]

    def cached(self, name: Text) -> bool:
        return bool(self.copies.get(name))

    def resume(self, prompt: Text) -> tuple[int, int]:
        """Tokens that all groups hold, and that the context holds."""
        limit = (len(prompt) - 1) // self.grain
        context = self.names(prompt, 0)[:limit]
        found = next((i for i, n in enumerate(context) if not self.cached(n)), len(context))
        for blocks in range(found, 0, -1):
            end = blocks * self.grain
            if all(
                all(map(self.cached, self.names(prompt, g)[: end // t.block_tokens][-t.needed :]))
                for g, t in enumerate(self.groups, start=1)
            ):
                return end, found * self.grain
        return 0, found * self.grain

    def stays(self, end: int, prompt: Text, resumed: int, found: int) -> bool:
        """Whether the window that ends at ``end`` stays cached."""
        if self.retention is None:
            return True
        special = {(len(prompt) - 1) // self.grain * self.grain}
        special |= {found} if found > resumed else set()
        return end in special or bool(self.retention and end % self.retention == 0)

    def serve(self, prompt: Text) -> int:
        resumed, found = self.resume(prompt)
        tables: list[list[int | None]] = []
        for number in range(1 + len(self.groups)):
            size = self.grain if not number else self.groups[number - 1].block_tokens
            names = self.names(prompt, number)[: resumed // size]
            kept = len(names) if not number else self.groups[number - 1].needed
            row: list[int | None] = [None] * (len(names) - kept) if len(names) > kept else []
            row += [self.copies[name][0] for name in names[len(row) :]]
            tables.append(row)
        for row in tables:
            for block in filter(lambda b: b is not None, row):
                assert block is not None
                del self.queue[block]
        at = resumed
        while at < len(prompt):
            for row, group in zip(tables[1:], self.groups, strict=True):
                behind = max(0, at - group.needed * group.block_tokens) // group.block_tokens
                self.free([b for b in reversed(row[:behind]) if b is not None])
                row[:behind] = [None] * min(behind, len(row))
            end = min(at + self.chunk, len(prompt))
            for number, row in enumerate(tables):
                size = self.grain if not number else self.groups[number - 1].block_tokens
                row += [self.take() for _ in range(-(-end // size) - len(row))]
            for number, row in enumerate(tables):
                self.remember(prompt, number, row, (at, end), (resumed, found))
            at = end
        for row in tables:
            self.free([b for b in reversed(row) if b is not None])
        return resumed // self.grain

    def remember(
        self,
        prompt: Text,
        number: int,
        row: list[int | None],
        span: tuple[int, int],
        hit: tuple[int, int],
    ) -> None:
        size = self.grain if not number else self.groups[number - 1].block_tokens
        last = span[1] // self.grain * self.grain
        for place, name in enumerate(self.names(prompt, number)):
            begin, end = place * size, (place + 1) * size
            if not (span[0] <= begin and end <= last):
                continue
            if number:
                boundary = -(-end // self.grain) * self.grain
                tail = self.groups[number - 1].needed * size
                if end <= boundary - tail or not self.stays(boundary, prompt, *hit):
                    continue
                if begin < boundary - tail:
                    continue
            block = row[place]
            assert block is not None
            self.name_of[block] = name
            self.copies.setdefault(name, []).append(block)

    def free(self, blocks: list[int]) -> None:
        for block in blocks:
            self.queue[block] = None
            if block not in self.name_of:
                self.queue.move_to_end(block, last=False)


@dataclass(eq=False)
class PlainNode:
    names: list[Text]
    parent: "PlainNode | None" = None
    children: dict[Text, "PlainNode"] = field(default_factory=dict)
    used: int = 0


class PlainSglang:
    """A radix tree of pages; leaves are found by looking at all nodes."""

    def __init__(self, pages: int, grain: int) -> None:
        self.root = PlainNode([])
        self.free, self.grain, self.clock = pages, grain, 0

    def serve(self, prompt: Text) -> int:
        names = visible_blocks(prompt, self.grain, BLOCK, whole=True)
        node, hits = self.walk(names[: (len(prompt) - 1) // self.grain])
        needed = -(-len(prompt) // self.grain) - hits
        while self.free < needed:
            leaf = min((n for n in self.leaves(self.root) if n is not node), key=lambda n: n.used)
            assert leaf.parent is not None
            del leaf.parent.children[leaf.names[0]]
            self.free += len(leaf.names)
        node, stored = self.walk(names)
        if stored < len(names):
            new = PlainNode(names[stored:], node, used=self.clock)
            node.children[names[stored]] = new
        self.free -= len(names) - stored
        return hits

    def walk(self, names: list[Text]) -> tuple[PlainNode, int]:
        self.clock += 1
        node, at = self.root, 0
        while at < len(names) and names[at] in node.children:
            child = node.children[names[at]]
            child.used = self.clock
            pairs = zip(child.names, names[at:], strict=False)
            common = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            if common is None:
                common = min(len(child.names), len(names) - at)
            if common < len(child.names):
                child = self.split(child, common)
            node, at = child, at + common
        return node, at

    def split(self, node: PlainNode, at: int) -> PlainNode:
        assert node.parent is not None
        upper = PlainNode(node.names[:at], node.parent, {node.names[at]: node}, self.clock)
        node.parent.children[node.names[0]] = upper
        node.parent, node.names = upper, node.names[at:]
        return upper

    def leaves(self, node: PlainNode) -> list[PlainNode]:
        if not node.children:
            return [node] if node is not self.root else []
        return [leaf for child in node.children.values() for leaf in self.leaves(child)]
