"""llama.cpp, ds4 and KTransformers to the byte: what their programs print, and recorded integers.

Rows are buffers that llama.cpp 0c1e57098 printed for a random GGUF with all layers (CPU), ds4's
published context buffers and payloads (issue 917, PR 124), KTransformers' published pools (1978).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.budget.answer import answer
from dsv4kv.budget.fit import advise
from dsv4kv.budget.inputs import read_inputs
from dsv4kv.budget.launch import read_command
from dsv4kv.budget.scenario import resolve
from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.ds4.sizes import Ds4Engine
from dsv4kv.engines.llamacpp.sizes import LlamaEngine, pad
from dsv4kv.engines.sglang.sizes import KtEngine
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import choose_formats
from dsv4kv.model.presets import load_model

DATA = Path(__file__).resolve().parents[3].parent / "shared/data/starts/local_engines.jsonl"


def deployed(model: str, context: int, **more: Any) -> Deployment:
    config = load_model(model)
    more = {"in_flight_tokens": 512} | more
    return Deployment(config, choose_formats(config), max_context_tokens=context, **more)


def test_recorded_integers_are_met() -> None:
    if not DATA.is_file():
        pytest.skip("the recorded integers are not here")
    seen = set[str]()
    for row in map(json.loads, DATA.read_text("utf-8").splitlines()):
        name = row["engine"].split()[0]
        seen.add(name)
        if name == "llama.cpp":
            opts = row["opts"]
            slots = row["slots"]
            context = row["ctx"] if row["unified"] else row["ctx"] // slots
            one = deployed(row["model"], context, in_flight_tokens=opts.get("ub", 512),
                           concurrency=slots, cache_dtype=row["type"])  # fmt: skip
            assert LlamaEngine().shared_bytes(one) == row["bytes"]["total"], row
            assert pad(context) == row["cells"]["n_ctx_seq"]
        elif "disk_payload_tokens" in row:
            tokens = row["disk_payload_tokens"]
            payload = Ds4Engine().saved_bytes(deployed("v4-flash", 2**20), tokens)
            assert payload == row["bytes"], row
        elif "context_buffers" in row:
            one = deployed("v4-flash", row["ctx"], in_flight_tokens=2048)
            parts = Ds4Engine().slot_parts(one, row["ctx"])
            assert sum(parts.values()) - parts["states"] == row["context_buffers"], row
    assert {"llama.cpp", "ds4"} <= seen


@pytest.mark.parametrize(("tokens", "size"), [(2_048, 52_184_460), (4_096, 80_373_132),
                                              (32_768, 475_014_540)])  # fmt: skip
def test_a_session_of_ds4_on_disk_has_its_published_size(tokens: int, size: int) -> None:
    assert Ds4Engine().saved_bytes(deployed("v4-flash", 2**20), tokens) == size


@pytest.mark.parametrize(("context", "mib"), [(32_768, 751.71), (100_000, 1_896.58),
                                              (384_000, 6_732.77)])  # fmt: skip
def test_context_buffers_of_ds4_are_what_it_prints(context: int, mib: float) -> None:
    found = answer(read_inputs({"engine": "ds4", "gpu": "b300", "context": str(context),
                                "gpus": "1", "weights": "100GiB"}))  # fmt: skip
    assert found.capacity
    assert f"context buffers {mib:,.2f} MiB" in found.capacity.note


@pytest.mark.parametrize(
    ("drafts", "ratio", "price"), [(0, 0.1, 15_955.85), (0, 0.4, 52_272.65), (1, 0.1, 25_491.85)]
)
def test_a_full_token_of_ktransformers_has_its_published_price(
    drafts: int, ratio: float, price: float
) -> None:
    one = deployed("v4-flash", 32_768, draft_layers=drafts, window_ratio=ratio)
    pools = KtEngine().pools(one)
    assert pools.bytes_per_full_token / pools.inflation == pytest.approx(price, abs=0.006)


@pytest.mark.parametrize("types", ["-ctk q8_0", "-ctk q8_0 -ctv f16", "--cache-type-v q4_0"])
def test_keys_and_values_of_two_types_are_refused_as_llama_cpp_does(types: str) -> None:
    with pytest.raises(ConfigError, match="give both the same type"):
        read_command(f"llama-server -m DeepSeek-V4-Flash-Q4.gguf {types}")


@pytest.mark.parametrize("flags", ["-c 32768 -np 4", "-c 8192", "-c 8192 -np 4 -kvu"])
def test_more_slots_are_advised_with_the_context_that_keeps_theirs(flags: str) -> None:
    """``-np`` alone would divide ``-c``, of unified slots, too, unless ``-kvu`` is given."""
    launch = "llama-server -m DeepSeek-V4-Flash-Q4.gguf"
    served = {"gpu": "b300", "gpus": "1", "weights": "150GiB"}
    found = answer(read_inputs({**read_command(f"{launch} {flags}").texts, **served}))
    more = next(each for each in advise(found.scenario, 8192, 4) if "-np 8" in each.change)
    kept = "-kvu" if "-kvu" in flags else ""
    words = f"{launch} {more.change} {'-c 8192' if kept else ''} {kept}"
    again = answer(read_inputs({**read_command(words).texts, **served}))
    assert (again.context, again.max_concurrency) == (8192, more.concurrency) == (8192, 8)


@pytest.mark.parametrize(
    ("flags", "step"),
    [
        ("-ub 4096", 2048),  # the batch that it takes unless one is given
        ("-ub 4096 -b 4096", 4096),
        ("-b 4096 -ub 3000", 3000),
        ("-b 256 -ub 0", 256),
        ("-b 256", 256),
        ("-b 4096", 512),
    ],
)
def test_a_step_of_llama_cpp_is_within_its_batch(flags: str, step: int) -> None:
    texts = read_command(f"llama-server -m DeepSeek-V4-Flash-Q4.gguf {flags}").texts
    assert read_inputs(texts).step_tokens == step


def test_experts_on_the_cpu_have_weights_that_are_given() -> None:
    asked = {"engine": "ktransformers", "model": "v4-flash", "gpu": "h100"}
    with pytest.raises(ConfigError, match="experts on the CPU"):
        resolve(read_inputs(asked))
    assert resolve(read_inputs({**asked, "weights": "40GiB"}))


@pytest.mark.parametrize(
    ("asked", "ranks"), [({}, 9), ({"pp": "10"}, 10), ({"gpus": "8"}, 8), ({"tp": "1"}, 9)]
)
def test_gpus_of_llama_cpp_share_layers_and_nothing_else(
    asked: dict[str, str], ranks: int
) -> None:
    texts = {"engine": "llama.cpp", "model": "v4-flash", "gpu": "rtx-4090", "context": "4K"}
    found = answer(read_inputs(texts | asked)).scenario
    assert (found.layout.pp, found.layout.gpus, found.layout.ep) == (ranks, ranks, 1)
    if "gpus" in asked:
        more = [each.change for each in advise(found, 4096, 1)]
        assert any(change.startswith("--gpus 9 ") for change in more)
