"""SGLang's pools: bytes of a full token, fixed bytes, slots of every pool.

The pool of full tokens is the unit. Compressed entries belong to it; windows and CSA states are
pools of their own, either a share of the full tokens or a fixed size for the requests that may
run; HCA states, and V4.1's pending pairs, are rows of every request.
Source: SGLang 0.5.12 to 0.5.23, ``pool_configurator.py``. Floats are used where SGLang uses them.
"""

from collections.abc import Iterator
from functools import lru_cache

from dsv4kv.engines.contract import Deployment, held_layers
from dsv4kv.engines.rule import Group, Layout, Piece
from dsv4kv.engines.sglang import Build
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import EntryFormat, PageLayout

DEFAULT_PAGE_TOKENS = 256
DEFAULT_WINDOW_RATIO = 0.1
CHARGED_INDEXER_BYTES = 132  # FP8; FP4 keys of 68 B are charged as FP8 on NVIDIA
_KEY_PAGE, _WIDE_KEY_PAGE = 64, 128  # keys of a page of V4.1's indexer; on SM100
_OWN_ROW_BYTES = 584  # of V4.1's windows of a request
_SCALE_BYTES = 4  # of an FP4 key
_FLAT_PAGE_TOKENS = 64
_EVICTION_TOKENS = 128  # SGLANG_SWA_EVICTION_INTERVAL
_LEAST_GUESSED_REQUESTS, _MOST_GUESSED_REQUESTS = 2048, 4096


def page_of(kind: str) -> int:
    return _FLAT_PAGE_TOKENS if kind == "flat" else DEFAULT_PAGE_TOKENS


class Pools:
    """Prices, fixed sizes and slots of one rank's pools."""

    def __init__(self, build: Build, deployment: Deployment) -> None:
        model, formats, drafts = deployment.model, deployment.formats, deployment.draft_tokens
        self.flat = flat = model.kind == "flat"  # V3.2, whose drafts are like its other layers
        if not flat:
            _check(build, deployment)
        elif formats.indexer.entry_bytes != CHARGED_INDEXER_BYTES:
            raise ConfigError(
                f"SGLang keeps V3.2's indexer keys in fp8, not {formats.indexer.name}: choose it."
            )
        layers = held_layers(deployment, f"sglang:{build.newest}", build.kinds)
        own = [layer for layer in layers if flat or not layer.is_draft]
        kinds, sources = [layer.kind for layer in own], model.kv_owners or ()
        self.build, self.deployment = build, deployment
        self.low = tuple(sorted(layer.ratio for layer in own if layer.layer_idx in sources))
        if sources and not self.low:
            raise ConfigError(
                f"stage {deployment.stage} holds no layer of {model.name} that stores compressed "
                "KV, and SGLang does not start with such a stage: choose fewer of them (--pp)."
            )
        self.csa, self.hca = 0 if self.low else kinds.count("csa"), kinds.count("hca")
        low = {ratio: self.low.count(ratio) for ratio in (1, 2)}
        self.layers = low | {4: self.csa, 128: self.hca}  # that store entries, by ratio
        self.windows = len(kinds) if build.stage_layers else len(model.compress_ratios)
        speculative = deployment.draft_layers > 0 or drafts > 0  # on every stage of a pipeline
        shares = speculative and not (flat or deployment.window_slots == "own")
        self.inflation = (self.windows + 1) / self.windows if shares else 1.0  # the draft worker's
        self.page_tokens = page = deployment.block_tokens or page_of(model.kind)
        self.csa_ring = 16 if speculative else 8  # rows of CSA state of a window or page
        self.hca_ring = 1 if deployment.online_state else 256 if speculative else 128
        slots, ratio = deployment.window_slots, deployment.window_ratio
        self.frees_windows = (  # without a radix tree, too
            (build.frees_windows if slots is None else slots != "kept")
            or not deployment.prefix_cache
            or deployment.role == "decode"
        )
        self.window_ratio = DEFAULT_WINDOW_RATIO if ratio is None else ratio
        sized = build.request_windows and ratio is None and deployment.concurrency is not None
        self.request_windows = flat or sized or deployment.window_slots == "own"  # of a fixed size
        self.decodes = build.request_windows and deployment.role == "decode"
        self.extra_slots = deployment.extra_slots if self.decodes else 0

        self.window_entry_bytes = self._priced(formats.window, 1)
        self.low_key_bytes = formats.indexer.entry_bytes  # in 4 bits on every GPU
        self.pair_ring = 1 << (drafts + 1).bit_length() if drafts else 2
        self.pair_row_bytes = 2 * model.head_dim * 4
        vectors = 3 if deployment.online_state else 2
        self.hca_row_bytes = vectors * model.head_dim * deployment.state_bytes
        span = page if build.state_per == "page" else model.window_tokens
        state = 4 * (model.head_dim + model.index_dim) * deployment.state_bytes
        hca = 0.0
        if not build.hca_state_fixed:
            hca = self.hca_ring / model.window_tokens * self.hca_row_bytes * self.hca
        csa = self.csa_ring / span * state * self.csa
        self.window_bytes_per_token = self.window_entry_bytes * self.windows + csa + hca
        self.keyed = sum(layer.selects for layer in own) if flat else 0
        share = 0.0 if self.request_windows else self.window_ratio
        price = share * self.window_bytes_per_token + self._context_bytes_per_token()
        self.bytes_per_full_token = price * self.inflation  # what SGLang divides by and logs

        self.chunk_tokens = deployment.in_flight_tokens // (1 + deployment.overlap)  # of one step
        self.window_tokens_per_request = self._window_tokens_per_request()
        self.fixed_window_tokens = self._fixed_window_tokens()

    def _context_bytes_per_token(self) -> float:
        if self.flat:
            entry = self.deployment.formats.main.entry_bytes
            return entry * self.windows + CHARGED_INDEXER_BYTES * self.keyed
        spread = 4 * self.deployment.hisparse_ratio
        csa = 1 / spread * self.entry_bytes(4) + 1 / 4 * CHARGED_INDEXER_BYTES
        low = sum((self.entry_bytes(each) + self.low_key_bytes) / each for each in self.low)
        return csa * self.csa + 1 / 128 * self.entry_bytes(128) * self.hca + low

    def entry_bytes(self, ratio: int) -> float:
        """Priced bytes of one compressed entry, page padding included."""
        entry = self.deployment.formats.main
        if ratio in (1, 2) and not self.build.v41_pages:
            return entry.entry_bytes
        return self._priced(entry, ratio)

    def _priced(self, entry: EntryFormat, ratio: int) -> float:
        if not self.build.padded:
            return entry.entry_bytes
        page = PageLayout(entry, self.page_tokens // ratio)
        return page.page_bytes / page.entries

    def _window_tokens_per_request(self) -> int:
        drafts, page = self.deployment.draft_tokens, self.page_tokens
        trailing = self.deployment.model.window_tokens + _EVICTION_TOKENS * max(1, drafts) + page
        ahead = 2 * drafts if self.deployment.overlap else -(-drafts // page) * page
        return trailing + (ahead if drafts else page)

    def _fixed_window_tokens(self) -> int:
        """Where prefixes are cached, with four tails a request."""
        if self.flat or not self.request_windows or self.deployment.window_slots == "own":
            return 0
        requests, page = self.deployment.concurrency or 0, self.page_tokens
        tail = self.deployment.model.window_tokens + page
        live = self.window_tokens_per_request * requests
        if self.decodes:
            live, tails = live + self.extra_slots * tail, 0
        else:
            live += self.deployment.in_flight_tokens + page
            tails = 4 * requests * tail * self.deployment.prefix_cache
        return -(-(live + tails) // page) * page

    def reserved_bytes(self, full_tokens: int) -> float:
        """Pages of V4.1's entries and keys in addition to the full tokens'."""
        if not self.build.v41_pages:
            return 0.0
        records = self.deployment.formats.window.name != "fp8_ds_mla"
        page, keys = self.page_tokens, _WIDE_KEY_PAGE if records else _KEY_PAGE
        total = 0.0
        for ratio in self.low:
            slots = -(-((full_tokens + page) // ratio + keys) // keys) * keys
            total += page * self.entry_bytes(ratio)
            total += (slots - full_tokens // ratio) * self.low_key_bytes
        return total

    def pair_state_bytes(self, requests: int) -> int:
        """Fixed bytes of V4.1's pending pairs: one request more and a spare ring."""
        rows = (requests + self.extra_slots + 1) * self.pair_ring + self.pair_ring + 1
        return -(-rows // 2) * 2 * self.pair_row_bytes * self.low.count(2)

    def hca_state_bytes(self, requests: int) -> int:
        """Fixed bytes of HCA states: one request more, a spare ring, whole 128s."""
        if not self.build.hca_state_fixed or not self.hca:
            return 0
        slots = requests + self.extra_slots + 1
        rows = -(-(slots * self.hca_ring + self.hca_ring + 1) // 128) * 128
        if self.deployment.online_state:
            rows = slots + self.hca_ring + 1
        return rows * self.hca_row_bytes * self.hca

    def _own_window_bytes(self) -> int:
        """V4.1's windows of every request, and what a step writes in addition.

        Drafts have rings of their own. Rows are priced as V4's, whatever is stored.
        """
        deployment, page = self.deployment, self.page_tokens
        if deployment.window_slots != "own":
            return 0
        window, drafts = deployment.model.window_tokens, deployment.draft_tokens
        slots = (deployment.concurrency or 0) + 1
        rows = slots * -(-(window + drafts) // page) * page + page
        scratch = max(self.chunk_tokens, slots * max(window, drafts)) + slots * window + page
        own = (rows * self.windows + 4 * scratch) * (_OWN_ROW_BYTES + 16)
        states = slots * 3 * 16 * deployment.model.head_dim * 8
        return own + states + rows * deployment.draft_layers * _OWN_ROW_BYTES

    def fixed_bytes(self, requests: int) -> dict[str, float]:
        """Sizes that do not grow with the tokens, by the name the line gives them."""
        windows = self.fixed_window_tokens * self.window_bytes_per_token * self.inflation
        return {
            "c128_state_fixed": self.hca_state_bytes(requests),
            "swa_fixed": windows + self._own_window_bytes(),
            "c2_state_fixed": self.pair_state_bytes(requests),
            "swa_ring_fixed": 0,
            "c4_state_fixed": 0,
        }

    def requests(self, available_bytes: int) -> int:
        """The request limit, or SGLang's guess where none is given."""
        if self.deployment.concurrency is not None:
            return self.deployment.concurrency
        full = int(available_bytes / self.bytes_per_full_token)
        guess = int(full / self.deployment.max_context_tokens * 512)
        guess = max(min(guess, _MOST_GUESSED_REQUESTS), _LEAST_GUESSED_REQUESTS)
        return min(guess, full // 2)

    def full_tokens(self, available_bytes: int) -> int:
        """Full tokens that fit into what fixed sizes leave, in whole pages."""
        fixed = sum(self.fixed_bytes(self.requests(available_bytes)).values())
        room, page = max(available_bytes - fixed, 0), self.page_tokens
        price = self.bytes_per_full_token
        tokens = int(room / price) // page * page
        while tokens > 0 and tokens * price + self.reserved_bytes(tokens) > room:
            tokens -= page
        return tokens

    def window_slots(self, full_tokens: int) -> int:
        """Slots of the pool of windows, next to the full tokens."""
        if self.request_windows:
            return self.fixed_window_tokens
        return int(full_tokens * self.window_ratio) // self.page_tokens * self.page_tokens


build_pools = lru_cache(maxsize=256)(Pools)


def lay_out(pools: Pools) -> Layout:
    """Pages of context, and of windows with the states of CSA layers that go with them."""
    deployment, page, ring = pools.deployment, pools.page_tokens, pools.csa_ring
    if pools.flat:
        entry, keys = deployment.formats.main.entry_bytes * pools.windows, pools.keyed
        key = page * CHARGED_INDEXER_BYTES * keys
        pieces = (Piece("kv", page * entry, pools.windows), Piece("indexer", key, keys))
        return Layout((Group("context", page, pieces=pieces),))
    model, layers = deployment.model, pools.windows + deployment.draft_layers
    window = PageLayout(deployment.formats.window, page).page_bytes
    windows = [Piece("swa", layers * window, layers)]
    if pools.csa:
        row = 4 * ring * deployment.state_bytes * pools.csa
        windows.append(Piece("deepseek_v4_c4_state", row * model.head_dim, pools.csa))
        windows.append(Piece("deepseek_v4_c4_indexer_state", row * model.index_dim, pools.csa))
    seen, cached = model.window_tokens, deployment.window_slots != "own"
    groups = (
        Group("context", page, pieces=tuple(_context_pieces(pools))),
        Group("window", page, seen, cached, pieces=tuple(windows)),
    )
    return Layout(groups, 0, seen)


def _context_pieces(pools: Pools) -> Iterator[Piece]:
    formats, page = pools.deployment.formats, pools.page_tokens
    amd = (pools.deployment.arch or "").startswith("gfx")
    apart = amd and formats.indexer.name == "mxfp4"  # values and scales are pools of their own
    for ratio, count in pools.layers.items():
        if not count:
            continue
        entries, name = page // ratio, f"deepseek_v4_c{ratio}"
        yield Piece(name, count * PageLayout(formats.main, entries).page_bytes, count)
        if ratio == 128:
            continue
        key, rows = formats.indexer.entry_bytes, count * entries
        yield Piece(f"{name}_indexer", rows * (key - _SCALE_BYTES * apart), count)
        if apart:
            yield Piece(f"{name}_indexer_scale", rows * _SCALE_BYTES, count)


_V4_PAIR = ("fp8_ds_mla", "fp8_ds_mla")
_V41_PAIRS = (
    ("fp4", "fp8_group32"),
    ("fp8_group32", "fp8_group32"),
    ("fp4_interleaved", "fp8_group32_interleaved"),
    ("fp8_group32_interleaved", "fp8_group32_interleaved"),
)


def _check(build: Build, deployment: Deployment) -> None:
    formats, page, kind = deployment.formats, deployment.block_tokens, deployment.model.kind
    pair = formats.main.name, formats.window.name
    known = (_V4_PAIR, *_V41_PAIRS) if kind == "v41" and build.v41_pages else (_V4_PAIR,)
    if pair not in known:
        raise ConfigError(
            f"SGLang's rules are known for {'; '.join(' and '.join(each) for each in known)}, not "
            f"{' and '.join(pair)}: choose these for main and window."
        )
    if kind == "v41" and formats.indexer.name != "mxfp4":
        raise ConfigError(
            f"SGLang keeps V4.1's indexer keys in mxfp4, not {formats.indexer.name}: choose it."
        )
    if formats.indexer.name == "bf16":
        raise ConfigError("SGLang keeps indexer keys in fp8 or mxfp4, not bf16: choose one.")
    if deployment.state_bytes not in (2, 4):
        raise ConfigError("SGLang keeps the compressor state in fp32 or bf16: choose one of them.")
    if page is not None and (page <= 0 or page % 128):
        raise ConfigError(f"block_tokens is {page}: SGLang's pages are multiples of 128 tokens.")
    if deployment.online_state and deployment.draft_layers:
        raise ConfigError("SGLang's online HCA state cannot be rolled back: leave drafts out.")
    if deployment.window_slots == "own" and (kind != "v41" or deployment.concurrency is None):
        raise ConfigError(
            "SGLang's encoder replay (windows of every request's own) is for V4.1, with "
            "--max-running-requests: leave it out, or give these."
        )
    if deployment.window_slots == "own" and deployment.draft_layers and not build.v41_pages:
        raise ConfigError(
            "SGLang's encoder replay with drafts is known of 0.5.23: leave the drafts out."
        )
    if deployment.window_ratio is not None and not 0 < deployment.window_ratio <= 1:
        raise ConfigError(
            f"the window ratio is {deployment.window_ratio}: SGLang takes more than 0, up to 1."
        )
