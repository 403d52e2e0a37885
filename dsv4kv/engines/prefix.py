"""What a prefix must have in the cache to be a hit, and how long a hit can be.

A hit ends at a whole block of context, and never covers the last token of a prompt, whose logits
are still wanted. At that end every window and state must be there too: without one of its blocks
the hit is lost, however much of the context is cached.
Source: vLLM 0.33 (``kv_cache_manager.py``, ``single_type_kv_cache_manager.py``; ``scheduler.py``
for V4.1's bounded replay), SGLang 0.5.23 (radix tree; ``swa_reprefill_tail_tokens`` for V4.1's),
TensorRT-LLM's block reuse; report arXiv:2606.19348 §3.5.2 for the dsv4kv cache.
"""

from dataclasses import dataclass

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.registry import find_engine
from dsv4kv.engines.vllm.pages import Group
from dsv4kv.engines.vllm.sizing import VllmEngine
from dsv4kv.errors import ConfigError

_CSA_STATE_TOKENS = 8
_DEFAULT_BLOCK_TOKENS = {"dsv4kv": 128, "sglang": 256, "trtllm": 128}


@dataclass(frozen=True)
class Need:
    """What one kind of storage must still hold for a hit.

    Attributes:
        storage: ``context``, ``window``, ``csa state`` or ``hca state``. Where a hit ends at a
            multiple of 128 tokens nothing of an HCA entry is pending; vLLM asks for it anyway.
        groups: Block tables of that kind; each must hold it.
        block_tokens: Tokens of a block.
        tail_tokens: Tokens before the hit's end that must be there; None for all of them.
        blocks: Blocks in a row at the hit's end; None for all of them.
    """

    storage: str
    groups: int
    block_tokens: int
    tail_tokens: int | None = None
    blocks: int | None = None


@dataclass(frozen=True)
class PrefixRule:
    """How an engine finds prefixes.

    Attributes:
        engine: Whose rule.
        block_tokens: Hits are multiples of this; also the shortest hit.
        recomputed_tokens: Tokens at the end of a prompt that no hit covers.
        dropped_blocks: Blocks a found hit gives back, for a draft model to compute.
        needs: What must be cached.
        replayed_tokens: Tokens at a hit's end that are computed again to have their window; a hit
            of so many or fewer is none.
    """

    engine: str
    block_tokens: int
    recomputed_tokens: int
    dropped_blocks: int
    needs: tuple[Need, ...]
    replayed_tokens: int = 0

    @property
    def shortest_prompt_tokens(self) -> int:
        """The shortest prompt that can hit at all."""
        blocks = self.replayed_tokens // self.block_tokens + 1
        return self.block_tokens * (blocks + self.dropped_blocks) + self.recomputed_tokens

    def hit_tokens(self, cached_tokens: int, prompt_tokens: int) -> int:
        """The longest hit of a prompt that shares its first ``cached_tokens`` with the cache.

        Raises:
            ConfigError: A negative count.
        """
        if cached_tokens < 0 or prompt_tokens < 0:
            raise ConfigError("tokens of a prompt and of a cached prefix cannot be negative.")
        usable = min(cached_tokens, prompt_tokens - self.recomputed_tokens)
        found = max(0, usable // self.block_tokens - self.dropped_blocks) * self.block_tokens
        return found if found > self.replayed_tokens else 0


def prefix_rule(engine_name: str, deployment: Deployment) -> PrefixRule:
    """The rule of an engine for a deployment; raises ``ConfigError``."""
    engine = find_engine(engine_name)
    if isinstance(engine, VllmEngine):
        return _vllm_rule(engine, deployment)
    family = engine.name.partition(":")[0]
    kind, window = deployment.model.kind, deployment.model.window_tokens
    own = 64 if (family, kind) == ("sglang", "flat") else _DEFAULT_BLOCK_TOKENS[family]
    block = deployment.block_tokens or own
    engine.costs(deployment)  # says what the engine does not serve
    if kind == "flat":
        return PrefixRule(engine.name, block, 1, 0, (Need("context", 1, block),))
    needs = [Need("context", 1, block), Need("window", 1, block, window, -(-window // block))]
    if family != "sglang":  # SGLang keeps CSA states with the window slots
        needs.append(Need("csa state", 1, block, _CSA_STATE_TOKENS, 1))
    if deployment.replays_windows:
        return PrefixRule(engine.name, block, 1, 0, tuple(needs[:1]), window)
    late = (family, kind) == ("sglang", "v41") and _replays(engine.name, deployment)
    return PrefixRule(engine.name, block, window if late else 1, 0, tuple(needs))


def _replays(engine: str, deployment: Deployment) -> bool:
    """Whether V4.1's bounded replay is on: by default, but in SGLang up to 0.5.22."""
    given = deployment.bounded_replay
    return engine != "sglang:0.5.22" if given is None else given


def _vllm_rule(engine: VllmEngine, deployment: Deployment) -> PrefixRule:
    """Groups of one kind stand together; a hit gives one block back for a draft to compute.

    V4.1's rings are never cached, its windows only with ``--no-swa-bounded-replay``.
    """
    drafts = deployment.draft_layers > 0
    groups = engine.layout(deployment).groups
    full, others = groups[0], groups[1:]
    needs = [Need("context", 1, full.block_tokens)]
    if deployment.model.kind == "v41" and _replays(engine.name, deployment):
        replayed = deployment.model.window_tokens
        return PrefixRule(engine.name, full.block_tokens, 1, 0, tuple(needs), replayed)
    for storage in ("window", "csa state", "hca state"):
        same = [group for group in others if _storage(group) == storage and not group.ring]
        if same:
            tail = (same[0].window_tokens or 1) - 1
            further = drafts and storage == "window"  # the draft's own group looks one further
            blocks = -(-tail // same[0].block_tokens) + further
            needs.append(Need(storage, len(same), same[0].block_tokens, tail, blocks))
    return PrefixRule(engine.name, full.block_tokens, 1, int(drafts), tuple(needs))


def _storage(group: Group) -> str:
    page = group.pages[0]
    return "window" if page.pool == "window" else f"{page.layer.kind} state"
