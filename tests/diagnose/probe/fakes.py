"""Servers in this process: our engines' caches, a virtual clock, and faults that are planted."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from zlib import crc32

from dsv4kv.core.hashed import HashedCache
from dsv4kv.core.radix import Pages, SglangCache, SglangWindowCache
from dsv4kv.diagnose.questioner import Answer, Prompt, Refused, Unreachable
from dsv4kv.engines.names import RULES
from dsv4kv.engines.rule import SPECULATIONS
from dsv4kv.model.presets import load_model
from dsv4kv.record.metrics import Values
from dsv4kv.replay.rules import Pool, cut_groups, rule_of
from tests.replay.texts import to_table

MODEL = load_model("v4-flash")
_NODES = 400_000
COLD_S, WARM_S = 5e-5, 1e-7
"""Seconds of a token that is computed, and of one that is found."""

Cache = Callable[[Prompt], int]
"""Serves a prompt and lets it go; returns the tokens it hit."""


@dataclass(frozen=True)
class Setting:
    """An engine as it is started.

    ``engine`` is ``vllm`` (one group), ``vllm-v4``, ``sglang`` (one pool) or ``sglang-v4``.
    """

    engine: str
    pages: int
    page_tokens: int = 256
    retention: int | None = None
    speculation: str = "none"
    chunk_tokens: int = 8192
    window_pages: int = 0


class Numbers:
    """Numbers blocks of prompts: equal ones with equal history, and what follows, share one."""

    def __init__(self, size: int, key_tokens: int) -> None:
        self._size, self._key_tokens = size, key_tokens
        self._known: dict[tuple[int, Prompt], int] = {}

    def path(self, prompt: Prompt) -> list[int]:
        """Numbers of a prompt's whole blocks."""
        path, before = list[int](), -1
        for end in range(self._size, len(prompt) - self._key_tokens + 1, self._size):
            key = before, prompt[end - self._size : end + self._key_tokens]
            before = self._known.setdefault(key, len(self._known))
            path.append(before)
        return path


def open_cache(setting: Setting) -> Cache:
    """An empty cache of ours, as an engine has it."""
    return (_open_vllm if setting.engine.startswith("vllm") else _open_sglang)(setting)


def _pool(setting: Setting) -> Pool:
    size, drafts = setting.page_tokens, SPECULATIONS[setting.speculation]
    table, tokens = to_table([(1,)]), setting.pages * size
    return Pool(table, tokens, size, MODEL, setting.chunk_tokens, drafts)


def _open_vllm(setting: Setting) -> Cache:
    pool, size = _pool(setting), setting.page_tokens
    drafts = pool.speculation
    name = "vllm-v4:dense" if setting.engine == "vllm-v4" else "vllm"
    groups = cut_groups(rule_of(RULES[name], pool), pool)
    ends = [max(0, part.end_tokens) for group in groups for part in group.parts if part.followed]
    context = Numbers(size, drafts.key_tokens)
    followed = Numbers(size, max(ends)) if ends else context
    ways: list[tuple[list[int], list[int]]] = []
    cache = HashedCache(
        setting.pages, size, groups, ways.__getitem__, _NODES, retention=setting.retention,
        chunk_tokens=setting.chunk_tokens, drops=drafts.drops,
    )  # fmt: skip

    def serve(prompt: Prompt) -> int:
        path = context.path(prompt)
        ways.append((path, followed.path(prompt) if ends else path))
        return _run(cache, len(ways) - 1, len(prompt), setting)

    return serve


def _open_sglang(setting: Setting) -> Cache:
    size, key_tokens = setting.page_tokens, SPECULATIONS[setting.speculation].key_tokens
    numbers, paths = Numbers(size, key_tokens), list[list[int]]()
    pages = Pages(
        setting.pages, size, paths.__getitem__, key_tokens=key_tokens,
        chunk_tokens=setting.chunk_tokens, window_pages=setting.window_pages,
        window_tokens=MODEL.window_tokens, dense=setting.retention is None,
    )  # fmt: skip
    cache = SglangCache(pages) if setting.engine == "sglang" else SglangWindowCache(pages)

    def serve(prompt: Prompt) -> int:
        paths.append(numbers.path(prompt))
        return _run(cache, len(paths) - 1, len(prompt), setting)

    return serve


def _run(cache: HashedCache | SglangCache, request: int, tokens: int, setting: Setting) -> int:
    if why := cache.refuses(tokens):
        raise Refused(why)
    hit = cache.begin(request, tokens).resumed * setting.page_tokens
    for at in range(hit, tokens, setting.chunk_tokens):
        cache.compute(request, min(at + setting.chunk_tokens, tokens))
    cache.end(request, 0)
    return hit


@dataclass
class FakeServer:
    """A server whose answers depend on the prompt alone, but for noise and planted faults."""

    cache: Cache
    noise: float = 0.0  # nats by which log-probabilities differ from run to run
    tells: bool = True  # ``cached_tokens``
    salts: bool = True  # whether it knows ``cache_salt``
    finds: bool = True  # anything at all
    stale: float = 0.0  # nats by which an answer is wrong behind a hit
    dies_at: int | None = None  # the prompt that it does not answer any more
    stored: float = 0.0  # tokens that a tier says it stored for each that was computed
    counts: bool = False  # whether it has a page of metrics
    restores: bool = False  # whether hits come from a tier, as the server tells
    drafts: bool = False
    asked: int = 0
    clock_s: float = 0.0
    values: Values = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self._noise = random.Random(self.seed)

    def ask(self, prompt: Prompt, outputs: int, salt: str | None, limit_s: float) -> Answer:
        del limit_s
        self.asked += 1
        if self.asked == self.dies_at:
            raise Unreachable("127.0.0.1:1 does not answer (ConnectionResetError: gone)")
        if salt and not self.salts:
            raise Refused("the server refused a prompt (400: cache_salt)")
        hit = self.cache((crc32(salt.encode()) % 1000, *prompt[1:]) if salt else prompt)
        hit = hit if self.finds else 0
        ttft_s = 0.01 + (len(prompt) - hit) * COLD_S + hit * WARM_S
        self.clock_s += ttft_s
        for name, more in (("vllm:prefix_cache_hits", hit), ("vllm:prefix_cache_queries",
                           len(prompt)), ("vllm:kv_offload_store_tokens",
                           self.stored * (len(prompt) - hit))):  # fmt: skip
            self.values[name] = self.values.get(name, 0.0) + more
        words, likely = self._output(prompt, outputs, self.stale if hit else 0.0)
        tiers = {"host": hit} if self.restores else {}
        return Answer(
            len(prompt), hit if self.tells else None, ttft_s, words, likely, tiers, ttft_s
        )

    def _output(
        self, prompt: Prompt, outputs: int, wrong: float
    ) -> tuple[tuple[str, ...], tuple[Mapping[str, float], ...]]:
        if outputs == 1:
            return (), ()
        draw, likely = random.Random(hash(prompt)), []
        for _ in range(outputs):
            values = {f"t{draw.randrange(1000)}": -draw.random() * 4 for _ in range(5)}
            moved = {w: v + self._noise.gauss(0, self.noise) + wrong * self._noise.choice([-1, 1])
                     for w, v in values.items()}  # fmt: skip
            likely.append(moved)
        return tuple(max(each, key=each.__getitem__) for each in likely), tuple(likely)

    def counters(self) -> tuple[Values, bool] | None:
        return (dict(self.values), self.drafts) if self.counts else None

    def now_s(self) -> float:
        return self.clock_s


def draw_setting(engine: str, seed: int) -> Setting:
    """A random setting of an engine."""
    draw = random.Random(f"{engine} {seed}")
    drafts = ["none", "dspark", "mtp", *(["mtp+connector"] if engine.startswith("vllm") else [])]
    made = Setting(engine, draw.randint(200, 400), speculation=draw.choice(drafts))
    match engine:
        case "vllm-v4":
            retention = draw.choice([None, 4096, 0])
            return replace(made, retention=retention, pages=draw.randint(2_200, 3_200),
                           chunk_tokens=2048)  # fmt: skip
        case "sglang-v4":
            windows = draw.randint(60, 120)
            return replace(made, retention=draw.choice([None, 0]), pages=10 * windows,
                           window_pages=windows)  # fmt: skip
        case "vllm" | _:
            return replace(made, page_tokens=draw.choice([64, 128, 256]))
