"""Prompts on their way from a prefill replica to a decode replica: how much, and how long."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from dsv4kv.config.fleet import TransferSection
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.clock import VirtualClock
from dsv4kv.core.served import Hit, Served
from dsv4kv.engines.contract import Sent
from dsv4kv.engines.names import find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.replay.memory import MemoryPlan, describe_deployment
from dsv4kv.replay.tier import Channel

SentOf = Callable[[int, int], Sent]
"""What is sent, by tokens of the prompt and tokens that the other side has."""

_WHOLE = 1024  # tokens from which on a further block adds context alone


def find_sent(config: ReplayConfig, memory: MemoryPlan) -> SentOf:
    """What every rank sends, as ``fleet.transfer.engine`` has it; raises ``ConfigError``."""
    name = config.fleet.transfer.engine
    if name == "blocks" or not config.fleet.is_split:
        return partial(_send_blocks, memory)
    engine = find_engine(name)
    held = describe_deployment(config, memory.model, memory.schemas)
    deployment = replace(held, block_tokens=256)

    @cache
    def whole(tokens: int) -> Sent:
        found = engine.sent(deployment, tokens)
        if found is None:
            raise ConfigError(
                f"fleet.transfer.engine is {name}: how it sends {memory.model.name} is not known: "
                "take blocks."
            )
        return found

    def beyond(tokens: int, found: int) -> Sent:
        sent = whole(tokens)
        if not found:
            return sent
        more, base = whole(found + _WHOLE), whole(_WHOLE)
        size = sent.bytes - (more.bytes - base.bytes)
        return Sent(size, sent.descriptors - (more.descriptors - base.descriptors))

    whole(_WHOLE)  # refused before anything runs
    return beyond


def _send_blocks(memory: MemoryPlan, tokens: int, found_tokens: int) -> Sent:
    """Blocks of context, and windows and states of a request; a piece for every layer's."""
    blocks = -(-tokens // memory.block_tokens) - found_tokens // memory.block_tokens
    size = blocks * memory.block_bytes + memory.slot_bytes
    return Sent(size, (blocks + 1) * len(memory.schemas))


class Link(Channel):
    """Sends prompts one at a time: setup + pieces · each + bytes / rate, of one rank."""

    def __init__(self, section: TransferSection, sent: SentOf) -> None:
        super().__init__(section.gbps, section.descriptor_us, setup_ms=section.setup_ms)
        self._sent = sent

    def send(self, now_s: float, tokens: int, found_tokens: int) -> float:
        """Send a prompt without what the other side has of it; returns when it is there."""
        sent = self._sent(tokens, found_tokens)
        return self.move(now_s, sent.descriptors, sent.bytes)


class Received:
    """Below a decode replica's cache: prompts that another replica has computed; see ``Below``.

    A request that begins has its prompt sent, without the blocks that are cached here. Its last
    token is computed again, as vLLM does, and gives the first token of the answer.
    """

    fetches = False

    def __init__(self, clock: Callable[[], VirtualClock], block_tokens: int) -> None:
        """``clock`` is the decode replica's; ``block_tokens`` are the tokens of a shared block."""
        # links that requests on their way will be sent over, by their numbers
        self.senders: dict[int, Link] = {}
        self._clock, self._tokens = clock, block_tokens

    def fetch(self, served: Served, found: int, usable: int) -> None:
        """Nothing: it is sent when the request begins."""

    def restore(self, served: Served, hit: Hit, usable: int) -> Hit:
        """All of a prompt, at ``served.ready_s``."""
        link = self.senders.pop(served.number, None)
        if link is None:
            return hit
        now_s, found_tokens = self._clock().now_s, hit.resumed * self._tokens
        served.ready_s = link.send(now_s, served.input_tokens, found_tokens)
        return Hit(usable, usable, usable)

    def offer(self, served: Served, blocks: int, tails: Sequence[int]) -> None:
        """Nothing is kept below."""

    def forget(self, blocks: Sequence[int], tails: Sequence[int]) -> None:
        """Nothing is kept below."""
