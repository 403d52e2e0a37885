"""A server's own counters, sampled: what it counted, never the mean of a gauge.

Read from the Prometheus text of vLLM and SGLang. Only what speaks of the cache is kept, with
labels that say where tokens were found and which rank counted; names of models are not.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Event as Stop
from typing import Any

from dsv4kv.errors import mask_url
from dsv4kv.record.folder import MOST_VALUE, Recording
from dsv4kv.record.run import HTTP, parse_url

Values = dict[str, float]

_KEPT = re.compile(
    r"vllm:(external_)?prefix_cache_(queries|hits)(_total)?"
    r"|vllm:prompt_tokens(_cached)?(_by_source)?(_total)?"
    r"|vllm:(generation_tokens|num_preemptions|request_success)(_total)?"
    r"|vllm:(kv_cache_usage_perc|num_requests_(running|waiting))"
    r"|vllm:(kv_offload|simple_kv_offload|nixl|mooncake|kv_block)_\w+"
    r"|sglang:(cached|prompt|generation|backuped|prefetched|load_back|evicted)_tokens(_total)?"
    r"|sglang:num_(retracted_requests|requests)_total"
    r"|sglang:(num_running_reqs|num_queue_reqs|(full_|swa_)?token_usage|cache_hit_rate)"
    r"|sglang:(max_total_num_tokens|page_size|kv_used_tokens)"
    r"|sglang:(hicache|kv_transfer)_\w+|sglang:(prefetch|backup)_bandwidth\w*"
    r"|process_start_time_seconds"
)
_LABELS = {"cache_source", "dp_rank", "engine", "pp_rank", "source", "tp_rank"}
_SETTINGS = {
    *("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization"),
    *("kv_cache_memory_bytes", "num_cpu_blocks", "num_gpu_blocks", "num_gpu_blocks_override"),
    *("page_size", "prefix_caching_hash_algo", "sliding_window"),
}
"""Of the server's configuration, what is written down."""
_WORD = re.compile(r"[a-z0-9_.]{1,32}|True|False|None")
_NAME = re.compile(r"[\w:]+")
_TIMEOUT_S, _LAST_S = 5.0, 1.0  # of a sample, and of the one at the end
MOST_BYTES = 2**23
"""Of a page; servers' have some hundred kilobytes for every rank."""
_PARSED_BYTES, _LINE_BYTES = 2**19, 2**12  # of lines that are kept: the parser takes its time
_MOST_SERIES = 2**16  # whose growth is counted

_HITS = {
    "vLLM": ("vllm:prefix_cache_hits", "vllm:prefix_cache_queries"),
    "SGLang": ("sglang:cached_tokens", "sglang:prompt_tokens"),
}
"""Whose counters make a hit rate: tokens found, of tokens asked for."""
_COUNTERS = {name for names in _HITS.values() for name in names}


class TooLong(ValueError):
    """A page has more counters of a cache than a sample takes."""


def parse(text: str) -> tuple[Values, dict[str, str]]:
    """The samples of a page that are kept, and the server's settings.

    Samples that differ only in labels that are not kept are added up. Raises ``TooLong``.
    """
    values: Values = {}
    settings: dict[str, str] = {}
    for name, labels, value in _samples(text):
        if name.endswith("cache_config_info"):
            settings |= {
                key: found
                for key, found in labels.items()
                if key in _SETTINGS and _WORD.fullmatch(found)
            }
        else:
            known = sorted(key for key in _LABELS & labels.keys() if _WORD.fullmatch(labels[key]))
            kept = ",".join(f"{key}={labels[key]}" for key in known)
            key = f"{name}{{{kept}}}" if kept else name
            values[key] = values.get(key, 0.0) + value
    return {key: value for key, value in values.items() if abs(value) <= MOST_VALUE}, settings


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    from prometheus_client.parser import text_string_to_metric_families

    left = _PARSED_BYTES
    for line in text.splitlines():
        name = _NAME.match(line)
        kept = name and _KEPT.fullmatch(name[0]) and not name[0].endswith(("_bucket", "_created"))
        kept = kept or (name and name[0].endswith("cache_config_info"))
        if not kept or len(line) > _LINE_BYTES:
            continue
        left -= len(line)
        if left < 0:
            raise TooLong
        try:
            (family,) = text_string_to_metric_families(line)
            value = float(family.samples[0].value)
        except Exception:  # one line that the parser fails at leaves the others
            continue
        if abs(value) <= MOST_VALUE:
            yield family.samples[0].name, family.samples[0].labels, value


class Counted:
    """How much counters have grown over samples; one that fell began anew with its server."""

    def __init__(self) -> None:
        self.grown: Values = {}
        self.restarts = 0
        self._totals = dict.fromkeys(_COUNTERS, 0.0)  # growth of all series of a name
        self._last: Values = {}

    def add(self, values: Mapping[str, float]) -> None:
        """The next sample; of the first nothing is known to have grown."""
        fell = False
        for name, value in values.items():
            if name not in self.grown and len(self.grown) >= _MOST_SERIES:
                continue
            before = self._last.get(name, value if not self._last else 0.0)
            base = name.partition("{")[0]  # gauges may fall
            total = base.removesuffix("_total")
            is_counter = base.endswith(("_total", "_count", "_sum")) or base in _COUNTERS
            if is_counter and value < 0:  # no count
                continue
            if value < before and is_counter:
                before, fell = 0.0, True
            self.grown[name] = self.grown.get(name, 0.0) + value - before
            if total in _COUNTERS:
                self._totals[total] += value - before
        self.restarts += fell
        counted = {name: value for name, value in values.items() if name in self.grown}
        if fell:
            self._last = counted
        else:
            self._last.update(counted)  # a page may leave series out

    def hits(self) -> tuple[str, int, int] | None:
        """Whose counters, tokens found, tokens asked for; None where that is less, or 0."""
        for engine, names in _HITS.items():
            found, asked = (self._totals[name] for name in names)
            if asked >= max(found, 1):  # a server that found more counts something else
                return engine, round(found), round(asked)
        return None


def count(samples: Iterable[Mapping[str, Any]]) -> dict[str, Counted]:
    """Growth by source, of the records of the stream ``metrics``."""
    counted: dict[str, Counted] = {}
    for sample in samples:
        if "values" in sample:
            counted.setdefault(sample["source"], Counted()).add(sample["values"])
    return counted


def hits_of(counted: Iterable[Counted]) -> tuple[int, int]:
    """Tokens found and tokens asked for, by all of them together."""
    pairs = [hits[1:] for each in counted if (hits := each.hits())]
    return sum(found for found, _ in pairs), sum(asked for _, asked in pairs)


class Metrics:
    """Samples a page every few seconds."""

    def __init__(
        self,
        number: int,
        url: str,
        every_s: float,
        recording: Recording,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        """``number``: of the page among those that are sampled; raises ``ConfigError``.

        ``warn`` is given a sentence about the first sample that is missed.
        """
        self._name, self._shown, self._every_s = f"metrics:{number}", mask_url(url), every_s
        sentence = f"{self._shown!r} is no page of metrics: give http://HOST:PORT/metrics."
        parts = parse_url(url, HTTP, sentence)
        path = parts.path if parts.path.strip("/") else "/metrics"
        self._url = parts._replace(path=path).geturl()
        self._recording, self._warn, self._is_warned = recording, warn, False
        self._settings: dict[str, str] = {}

    def run(self, stop: Stop) -> None:
        """Sample immediately, every few seconds and at the end."""
        self._sample()
        while not stop.wait(self._every_s):
            self._sample()
        self._sample(_LAST_S)

    def _sample(self, limit_s: float = _TIMEOUT_S) -> None:
        from dsv4kv.record.http import ask

        try:
            page = ask(self._url, limit_s, most_bytes=MOST_BYTES)
            values, settings = parse(page.content.decode("utf-8", "replace"))
            why = ""
            if page.status != 200:
                why = f"status {page.status}"
            elif not page.is_whole:
                why = "page too long"
            elif not values and not settings:
                why = "no counters of a cache"
        except OSError as error:
            why = type(error).__name__
        except TooLong:
            why = "page too long"
        if why:
            if not self._is_warned:
                self._is_warned = True
                self._warn(f"--metrics {self._shown}: a sample is missing ({why}).")
            self._recording.write("metrics", {"source": self._name, "what": "gap", "why": why})
            return
        self._recording.write("metrics", {"source": self._name, "values": values})
        if settings != self._settings:
            self._settings = settings
            note = {"what": "server", "source": self._name, "settings": settings}
            self._recording.write("notes", note)
