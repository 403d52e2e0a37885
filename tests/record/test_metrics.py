"""A server's counters are sampled, and what they grew is what it did."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from dsv4kv.record.folder import Recording, read_stream
from dsv4kv.record.metrics import Counted, Metrics, TooLong, Values, parse

VLLM = """\
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="secret/model"} 1e+03
vllm:prefix_cache_queries_total{engine="1",model_name="secret/model"} 500.0
vllm:prefix_cache_queries_created{engine="0",model_name="secret/model"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="secret/model"} 250.0 1795391350123
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="m",source="host"} 3
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="n",source="host"} 4
vllm:kv_cache_usage_perc{engine="0",model_name="secret/model"} 0.5
vllm:cache_config_info{block_size="256",engine="0",num_gpu_blocks="7236",path="/home/me"} 1.0
vllm:e2e_request_latency_seconds_bucket{le="0.3",model_name="secret/model"} 5
vllm:nixl_xfer_time_seconds_bucket{le="0.3",model_name="secret/model"} 5
vllm:nixl_xfer_time_seconds_sum{model_name="secret/model"} 2.5
process_start_time_seconds 1.79e+09
"""
SGLANG = """\
sglang:cache_hit_rate{model_name="m"} 0.9
sglang:cached_tokens_total{cache_source="device",model_name="m"} %d
sglang:cached_tokens_total{cache_source="host",model_name="m"} %d
sglang:prompt_tokens_total{model_name="m"} %d
"""


def test_what_speaks_of_the_cache_is_kept_with_its_ranks_and_sources() -> None:
    values, settings = parse(VLLM)
    assert values == {
        "vllm:prefix_cache_queries_total{engine=0}": 1000.0,
        "vllm:prefix_cache_queries_total{engine=1}": 500.0,
        "vllm:prefix_cache_hits_total{engine=0}": 250.0,
        "vllm:prompt_tokens_cached_by_source_total{engine=0,source=host}": 7.0,
        "vllm:kv_cache_usage_perc{engine=0}": 0.5,
        "vllm:nixl_xfer_time_seconds_sum": 2.5,
        "process_start_time_seconds": 1.79e9,
    }
    assert settings == {"block_size": "256", "num_gpu_blocks": "7236"}


def sglang(*samples: tuple[int, int, int]) -> list[Values]:
    return [parse(SGLANG % sample)[0] for sample in samples]


ASKED, FOUND = "sglang:prompt_tokens_total", "sglang:cached_tokens_total"
RANKS = [VLLM, VLLM.replace(" 500.0", " 900.0").replace(" 250.0", " 260.0")]
HITS = {
    "what counters grew, and no gauge": (
        sglang((100, 0, 1000), (150, 30, 1400), (160, 30, 1500)), ("SGLang", 90, 500), 0,
    ),
    "several ranks": ([parse(page)[0] for page in RANKS], ("vLLM", 10, 400), 0),
    "a counter that fell began anew": (
        sglang((100, 0, 1000), (150, 0, 1400), (20, 0, 60)), ("SGLang", 70, 460), 1,
    ),
    "a label that comes later": ([{ASKED: 10.0}, {ASKED: 20.0, FOUND: 4.0}], ("SGLang", 4, 10), 0),
    "a series that a page leaves out": (
        [{ASKED: 100.0, FOUND: 70.0}, {ASKED: 200.0}, {ASKED: 300.0, FOUND: 90.0}],
        ("SGLang", 20, 200), 0,
    ),
    "more found than asked for": (sglang((0, 0, 0), (900, 0, 10)), None, 0),
    "less than nothing": (sglang((0, 0, 0), (-5, 0, -10), (-10, 0, -20)), None, 0),
    "gauges may fall": ([{"vllm:kv_cache_usage_perc": value} for value in (0.9, 0.1)], None, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", HITS)
def test_hits_are_what_counters_grew_by(name: str) -> None:
    samples, hits, restarts = HITS[name]
    counted = Counted()
    for sample in samples:
        counted.add(sample)
    assert (counted.hits(), counted.restarts) == (hits, restarts)


def test_series_without_end_are_counted_up_to_a_limit() -> None:
    counted = Counted()
    for first in range(0, 200_000, 50_000):
        page = {f"vllm:nixl_x{{engine={each}}}": 1.0 for each in range(first, first + 50_000)}
        counted.add(page)
    assert len(counted.grown) == 2**16


@given(st.text('ab{}="\\, #1e+N\t\n', max_size=40))
def test_any_page_is_read(text: str) -> None:
    parse(text)
    parse("vllm:prompt_tokens{" + text)
    parse('vllm:prompt_tokens{a="1",' + text + "} 1")


@pytest.mark.parametrize(
    "line",
    [
        "vllm:prompt_tokens_total NaN", "x", 'vllm:prompt_tokens{a="1", ="x"} 1',
        'vllm:prompt_tokens{a="1"} 9e18\nvllm:prompt_tokens{a="2"} 9e18',
    ],
)  # fmt: skip
def test_what_is_no_number_is_left_out(line: str) -> None:
    assert parse(line) == ({}, {})


def test_a_page_of_more_counters_than_are_read_is_no_sample() -> None:
    asked = [f'vllm:prefix_cache_queries_total{{rank="{n:0100}"}} 9' for n in range(4_000)]
    found = [line.replace("queries", "hits") for line in asked]
    assert parse("\n".join(asked[:1_000] + found[:1_000]))[0]
    with pytest.raises(TooLong):
        parse("\n".join(asked + found))


@pytest.mark.parametrize(
    "line",
    [
        "vllm:prompt_tokens_total{" + "a" * 40_000 + "} 1",
        'vllm:prompt_tokens_total{a="' + "\\" * 4_000 + '"} 1',
        "\n".join(["vllm:prompt_tokens_total{" + 'a="",' * 800 + "} 1"] * 500),
        "\n".join(['vllm:prompt_tokens_total{a="' + '\\"' * 2_000 + '"} 1'] * 2_000),
    ],
)
def test_little_is_parsed_of_odd_lines(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser takes the square of a line's length: 15 s for the first."""
    lengths = list[int]()

    def counting(text: str) -> Iterable[Metric]:
        lengths.append(len(text))
        return text_string_to_metric_families(text)

    monkeypatch.setattr("prometheus_client.parser.text_string_to_metric_families", counting)
    with suppress(TooLong):
        parse(line)
    assert max(lengths, default=0) <= 2**12
    assert sum(lengths) <= 2**21


@contextmanager
def serving(pages: list[str]) -> Iterator[str]:
    """Serves a page after the other, the last one again; an empty one is an error."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.pop(0) if len(pages) > 1 else pages[0]
            self.send_response((200 if page else 503) if self.path == "/metrics" else 404)
            self.end_headers()
            with suppress(ConnectionError):  # who has read enough leaves
                self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("page", "path", "why"),
    [
        (VLLM, "", ""),
        (VLLM, "/metrics", ""),
        (VLLM, "/other", "status 404"),
        ("# \n" * 3_000_000, "", "page too long"),
        ("<html>\n", "", "no counters of a cache"),
    ],
)
def test_a_page_is_sampled_twice_said_once(page: str, path: str, why: str, tmp_path: Path) -> None:
    stop, said = threading.Event(), list[str]()
    stop.set()
    with serving([page]) as url, Recording(tmp_path / "recording") as recording:
        address = url.removesuffix("/metrics") + path
        Metrics(0, address, 1.0, recording, said.append).run(stop)
    samples = list(read_stream(tmp_path / "recording", "metrics"))
    assert [(each.get("why", ""), "values" in each) for each in samples] == [(why, not why)] * 2
    assert said == ([f"--metrics {address}: a sample is missing ({why})."] if why else [])
    notes = [n for n in read_stream(tmp_path / "recording", "notes") if n["what"] == "server"]
    settings = [{"block_size": "256", "num_gpu_blocks": "7236"}]
    assert [note["settings"] for note in notes] == ([] if why else settings)
