"""A replica of a fleet: a replay that a router feeds, and what it sends prompts over."""

from collections.abc import Sequence

from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.fleet import Endpoint, View
from dsv4kv.core.prompts import Below
from dsv4kv.core.served import Served
from dsv4kv.replay.build import Parts, build_replay
from dsv4kv.replay.fleet.transfer import Link, Received
from dsv4kv.replay.tiers import SharedTiers
from dsv4kv.traces.request import Request


class Replica:
    """One server.

    Attributes:
        name: Its group and number.
        config: Its configuration.
        settings: What differs from the rest of the configuration, as a line of text.
        parts: What it has in common with replicas that are set alike.
        endpoint: Where it is sent requests.
        replay: The replay.
        link: What it sends prompts over.
        received: Prompts that are sent to it, where it decodes and does nothing else.
    """

    def __init__(
        self,
        name: str,
        config: ReplayConfig,
        parts: Parts,
        trace: Sequence[Request],
        shared: SharedTiers,
        looks: frozenset[str],
        link: Link,
        settings: str = "",
        *,
        decodes: bool,
        records: bool = True,
    ) -> None:
        """``looks`` is what the router wants to know; ``records`` whether outcomes are kept."""
        self.name, self.config, self.parts, self.settings = name, config, parts, settings
        self.link = link
        self.received: Received | None = None
        if decodes:
            self.received = Received(lambda: self.replay.scheduler.clock, parts.shared_tokens)
        delay_s = config.fleet.event_delay_ms / 1e3
        self.endpoint = Endpoint(looks, delay_s, parts.shared_tokens, parts.memory.block_tokens)

        def cover(below: Below | None) -> Below | None:
            return self.received or below

        self.replay = build_replay(
            config, trace, parts=parts, source=self.endpoint, cover=cover, shared=shared
        )
        self.replay.scheduler.records = records
        self.endpoint.run_by(self.replay.scheduler, peeks=parts.engine is not None)

    @property
    def served(self) -> list[Served]:
        """Requests that it was given, in their order."""
        return self.endpoint.served

    @property
    def now_s(self) -> float:
        """Its time."""
        return self.replay.scheduler.clock.now_s

    def found_tokens(self, served: Served) -> int:
        """Leading tokens of a prompt that are cached."""
        return self.replay.scheduler.prompts.look_up(served) * self.parts.shared_tokens

    def look_below(self, view: View, keys: Sequence[int], until_s: float) -> None:
        """Add to a view what the tiers had by then, each behind the one before.

        A tier that replicas share counts all behind the tokens on the GPUs.
        """
        tiers = self.replay.tiers
        if tiers is None:
            return
        each = tiers.object_tokens
        size = each // self.parts.shared_tokens
        ends = keys[size - 1 :: size]
        first = reach = view.device_tokens // each
        for tier in tiers.tiers:
            name = "shared" if tier.name in self.config.fleet.shared_tiers else tier.name
            begin = end = first if name == "shared" else reach
            while end < len(ends) and tier.ready_s(ends[end]) <= until_s:
                end += 1
            if name in ("host", "disk", "shared"):
                setattr(view, f"{name}_tokens", (end - begin) * each)
            reach = max(reach, end)
