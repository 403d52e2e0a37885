"""Bridges to other packages, with stand-ins for their functions."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dsv4kv.errors import PeerUnavailable
from dsv4kv.model.formats import FORMATS, PageLayout
from dsv4kv.ops.check import check_backend
from dsv4kv.ops.check.calls import gather_all, window_insert
from dsv4kv.ops.check.maker import make_call
from dsv4kv.ops.registry import resolve_backend
from tests.ops.peers import standins
from tests.ops.peers.caches import CACHES, cache

CPU = torch.device("cpu")
Write = Callable[..., None]

VLLM_CACHE_UTILS = "vllm.models.deepseek_v4.common.ops.cache_utils"
SGLANG_DEQUANT = "sglang.kernels.ops.attention.dsv4.dequant_k_cache"
GEMS_GATHER = "flag_gems.fused.deepseek_v4_attention_dequantize_and_gather_k_cache"
STANDINS = "from tests.ops.peers.standins import"
VLLM = (
    f"{STANDINS} vllm_gather as dequantize_and_gather_k_cache\n"
    f"{STANDINS} vllm_insert as quantize_and_insert_k_cache\n"
)
SGLANG = f"{STANDINS} sglang_gather as dequantize_k_cache_paged_dsv4\n"
GEMS = f"{STANDINS} flaggems_gather as dequantize_and_gather_k_cache\n"

PACKAGES = {
    "vllm": (VLLM_CACHE_UTILS, VLLM),
    "sglang": (SGLANG_DEQUANT, SGLANG),
    "flaggems": (GEMS_GATHER, GEMS),
}
OLDER_PLACES = [
    ("vllm", "vllm.v1.attention.ops.deepseek_v4_ops", VLLM),
    ("sglang", SGLANG_DEQUANT, SGLANG.replace("_dsv4", "")),
    (
        "sglang",
        "sglang.srt.layers.attention.dsv4.dequant_k_cache",
        SGLANG.replace("_dsv4", ""),
    ),
    (
        "flaggems",
        "flag_gems.fused.dsv4_attention",
        GEMS.replace("as dequantize", "as dsv4_dequantize"),
    ),
]
OPERATIONS = {
    "vllm": {"gather_all", "gather_window", "entry_insert", "window_insert"},
    "sglang": {"gather_topk", "gather_all", "gather_window"},
    "flaggems": {"gather_all", "gather_window"},
}

each_package = pytest.mark.parametrize("name", PACKAGES)


@each_package
@pytest.mark.parametrize("pages", ["as shipped", "long blocks", "drafts"])
def test_bridged_operations_equal_the_reference(
    name: str, pages: str, write_module: Write
) -> None:
    write_module(*PACKAGES[name])
    resolved = resolve_backend(name, "reference")
    assert set(resolved.foreign) == OPERATIONS[name]
    assert check_backend(resolved, CACHES[pages], CPU) == []


@pytest.mark.parametrize(("name", "module", "source"), OLDER_PLACES)
def test_functions_are_found_where_other_versions_have_them(
    name: str, module: str, source: str, write_module: Write
) -> None:
    write_module(module, source)
    resolved = resolve_backend(name, "cpu")
    assert check_backend(resolved, CACHES["as shipped"], CPU) == []


@each_package
def test_a_function_sees_the_pools_own_bytes(name: str, write_module: Write) -> None:
    write_module(*PACKAGES[name])
    call = make_call(gather_all(PageLayout(FORMATS["main"]["fp8_ds_mla"], 32)), CPU, 0)
    standins.caches_seen.clear()
    resolve_backend(name, "cpu").backend.gather_all(*call.arguments)
    pages = call.arguments[0].pages
    assert [seen.data_ptr() for seen in standins.caches_seen] == [pages.data_ptr()]


@each_package
def test_bridging_alone_calls_no_function_of_the_package(name: str, write_module: Write) -> None:
    write_module(*PACKAGES[name])
    bridging = resolve_backend(name, "cpu").bridging
    assert bridging is not None
    layout = PageLayout(FORMATS["main"]["fp8_ds_mla"], 32)
    gather, insert = (make_call(make(layout), CPU, 0) for make in (gather_all, window_insert))
    standins.caches_seen.clear()
    bridging.gather_all(*gather.arguments)
    if name == "vllm":
        bridging.window_insert(*insert.arguments)
    assert standins.caches_seen == []


@each_package
def test_pages_of_other_formats_are_left_to_the_base(name: str, write_module: Write) -> None:
    write_module(*PACKAGES[name])
    resolved = resolve_backend(name, "cpu")
    keys = PageLayout(FORMATS["indexer"]["mxfp4"], 32)
    mine, expected = (make_call(gather_all(keys), CPU, 0) for _ in range(2))
    standins.caches_seen.clear()
    resolved.backend.gather_all(*mine.arguments)
    resolve_backend("cpu", "cpu").backend.gather_all(*expected.arguments)
    assert torch.equal(mine.arguments[-1], expected.arguments[-1])
    assert standins.caches_seen == []
    assert resolved.serves("gather_all", "fp8_ds_mla")
    assert not resolved.serves("gather_all", "mxfp4")


@each_package
def test_a_cache_without_such_pages_is_nothing_for_them(name: str, write_module: Write) -> None:
    write_module(*PACKAGES[name])
    resolved = resolve_backend(name, "cpu")
    with pytest.raises(PeerUnavailable) as refusal:
        check_backend(resolved, cache(("bf16", "bf16", "mxfp4")), CPU)
    assert str(refusal.value) == (
        f"backend {name} has nothing to do here: it brings {', '.join(resolved.foreign)}, takes "
        "fp8_ds_mla pages only, and this cache holds bf16, mxfp4."
    )


def test_a_wrong_package_is_named(write_module: Write) -> None:
    write_module(
        SGLANG_DEQUANT, SGLANG.replace("sglang_gather as", "sglang_gather_of_next_row as")
    )
    found = check_backend(resolve_backend("sglang", "cpu"), CACHES["as shipped"], CPU)
    assert {each.operation for each in found} == OPERATIONS["sglang"]
    assert all(each.backend == "sglang" for each in found)


@pytest.mark.parametrize(
    ("name", "package"), [("vllm", "vllm"), ("sglang", "sglang"), ("flaggems", "flag_gems")]
)
def test_a_package_that_is_absent_is_said_to_be(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.ops.peers.foreign.find_spec", lambda _: None)
    with pytest.raises(PeerUnavailable) as refusal:
        resolve_backend(name, "cpu")
    assert str(refusal.value) == (
        f"backend {name} needs the package {package}, which is not installed: "
        f"pip install {package}."
    )
    assert refusal.value.exit_code == 8


@pytest.mark.parametrize("module", ["flag_gems.other", "flag_gems.fused.dsv4_attention"])
def test_a_version_without_the_function_is_said_to_be_one(
    module: str, write_module: Write, write_distribution: Write
) -> None:
    write_module(module, "")
    write_distribution("flag_gems", "5.0.2")
    with pytest.raises(PeerUnavailable) as refusal:
        resolve_backend("flaggems", "cpu")
    assert str(refusal.value) == (
        f"backend flaggems: flag_gems 5.0.2 has no {GEMS_GATHER}:dequantize_and_gather_k_cache "
        "and no flag_gems.fused.dsv4_attention:dsv4_dequantize_and_gather_k_cache: install a "
        "version that has one."
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import triton_of_tomorrow", "ModuleNotFoundError: No module named 'triton_of_tomorrow'"),
    ],
)
def test_a_package_that_cannot_be_imported_is_said_why(
    source: str, reason: str, write_module: Write
) -> None:
    write_module(VLLM_CACHE_UTILS, source)
    with pytest.raises(PeerUnavailable) as refusal:
        resolve_backend("vllm", "cpu")
    assert str(refusal.value) == (
        f"backend vllm: vllm as installed cannot be imported here ({reason})."
    )


def test_the_version_of_a_package_is_told(write_module: Write, write_distribution: Write) -> None:
    write_module(*PACKAGES["vllm"])
    write_distribution("vllm", "0.33.0")
    assert resolve_backend("vllm", "cpu").version == "0.33.0"


def test_no_package_is_imported_before_it_is_asked_for(
    tmp_path: Path, write_module: Write
) -> None:
    for package in ("vllm", "sglang", "flag_gems", "flash_mla", "mine"):
        (tmp_path / f"{package}.py").write_text("raise SystemExit('imported')")
    script = (
        "import dsv4kv.ops.registry as registry\n"
        "from dsv4kv.errors import ConfigError\n"
        "registry.resolve_backend('cpu', 'cpu')\n"
        "try: registry.resolve_backend('abacus', 'cpu')\n"
        "except ConfigError: print('done')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{script}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("done\n", "")
