"""Bridges to other packages' kernels, with stand-ins for them: see ``standins``."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib import invalidate_caches
from pathlib import Path

import pytest

from dsv4kv.errors import PeerUnavailable
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops.check import check_backend
from dsv4kv.ops.registry import resolve_backend
from tests.ops.operations import CACHES, CPU, cache

Write = Callable[..., None]

VLLM_CACHE_UTILS = "vllm.models.deepseek_v4.common.ops.cache_utils"
SGLANG_DEQUANT = "sglang.kernels.ops.attention.dsv4.dequant_k_cache"
STANDINS = "from tests.ops.peers.standins import"
VLLM = (
    f"{STANDINS} vllm_gather as dequantize_and_gather_k_cache\n"
    f"{STANDINS} vllm_insert as quantize_and_insert_k_cache\n"
)
SGLANG = f"{STANDINS} sglang_gather as dequantize_k_cache_paged_dsv4\n"
FLASHMLA = f"{STANDINS} flash_mla_with_kvcache, get_mla_metadata\n"
DEEPGEMM = f"{STANDINS} fp8_fp4_paged_mqa_logits, get_num_sms, get_paged_mqa_logits_metadata\n"

PACKAGES = {
    "vllm": (VLLM_CACHE_UTILS, VLLM),
    "sglang": (SGLANG_DEQUANT, SGLANG),
    "flashmla": ("flash_mla.flash_mla_interface", FLASHMLA),
    "deepgemm": ("deep_gemm", DEEPGEMM),
}
PLACES = [
    *((name, *package) for name, package in PACKAGES.items()),
    ("flashmla", "vllm.third_party.flashmla.flash_mla_interface", FLASHMLA),
    ("deepgemm", "vllm.third_party.deep_gemm", DEEPGEMM),
]
OPERATIONS = {
    "vllm": {"gather_all", "gather_window", "entry_insert", "window_insert"},
    "sglang": {"gather_topk", "gather_all", "gather_window"},
    "flashmla": {"attend"},
    "deepgemm": {"index_scores"},
}
DISTRIBUTIONS = {
    "vllm": ("vllm", "vllm"),
    "sglang": ("sglang", "sglang"),
    "flashmla": ("flash_mla", "sgl-flash-mla"),
    "deepgemm": ("deep_gemm", "sgl-deep-gemm"),
}
KEYS_OF_64 = [
    cache(("fp8_ds_mla", "fp8_ds_mla", "fp8"), block_tokens=256),
    cache(("fp4", "fp8_group32", "fp8"), "v4.1-flash"),
]
MLA = [CACHES[name] for name in ("as shipped", "long blocks", "drafts")]

each_package = pytest.mark.parametrize("name", PACKAGES)


def plans(name: str) -> list[CachePlan]:
    return KEYS_OF_64 if name == "deepgemm" else MLA


@pytest.mark.parametrize(("name", "module", "source"), PLACES)
def test_bridged_operations_equal_the_reference_wherever_they_are(
    name: str, module: str, source: str, write_module: Write
) -> None:
    write_module(module, source)
    resolved = resolve_backend(name, "reference")
    assert set(resolved.foreign) == OPERATIONS[name]
    for plan in plans(name):
        assert check_backend(resolved, plan, CPU) == []


def test_a_cache_without_such_pages_is_nothing_for_them(write_module: Write) -> None:
    write_module(*PACKAGES["vllm"])
    resolved = resolve_backend("vllm", "cpu")
    with pytest.raises(PeerUnavailable) as refusal:
        check_backend(resolved, cache(("bf16", "bf16", "mxfp4")), CPU)
    assert str(refusal.value) == (
        f"backend vllm has nothing to do here: it brings {', '.join(resolved.foreign)}, takes "
        "fp8_ds_mla pages only, and this cache holds bf16, mxfp4."
    )


@each_package
def test_a_package_that_is_absent_is_named_with_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.ops.registry.find_spec", lambda _: None)
    package, distribution = DISTRIBUTIONS[name]
    with pytest.raises(PeerUnavailable) as refusal:
        resolve_backend(name, "cpu")
    assert str(refusal.value) == (
        f"backend {name} needs the package {package}, which is not installed: "
        f"pip install {distribution}."
    )
    assert refusal.value.exit_code == 8


def test_a_version_without_the_function_is_said_to_be_one(
    write_module: Write, tmp_path: Path
) -> None:
    write_module("vllm.other", "")
    (folder := tmp_path / "vllm-0.1.dist-info").mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.1\n")
    invalidate_caches()
    with pytest.raises(PeerUnavailable) as refusal:
        resolve_backend("vllm", "cpu")
    assert str(refusal.value) == (
        f"backend vllm: vllm 0.1 has no {VLLM_CACHE_UTILS}:dequantize_and_gather_k_cache: install "
        "a version that has one."
    )


def test_no_package_is_imported_before_it_is_asked_for(
    tmp_path: Path, write_module: Write
) -> None:
    for package in ("vllm", "sglang", "flash_mla", "mine"):
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


# ---- docs/backends.md ---------------------------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "docs" / "backends.md").read_text()


def test_the_example_equals_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_gather.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    resolved = resolve_backend("my_gather.py:gather_topk", "cpu")
    assert resolved.foreign == ("gather_topk",)
    for name in ("as shipped", "long blocks"):
        assert check_backend(resolved, CACHES[name], CPU) == []


def test_the_operations_of_every_package_are_listed() -> None:
    table = PAGE.partition("| backend | brings |")[2].partition("\n\n")[0]
    listed: dict[str, set[str]] = {}
    name = ""
    for row in table.splitlines()[2:]:
        cells = row.split("|")
        name = cells[1].strip(" `") or name
        listed.setdefault(name, set()).update(re.findall(r"`(\w+)`", cells[2]))
    assert listed == OPERATIONS
