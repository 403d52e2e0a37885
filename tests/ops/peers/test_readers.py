"""Bridges to kernels that read the cache on the way into attention, with stand-ins for them."""

from collections.abc import Callable

import pytest
import torch

from dsv4kv.errors import PeerUnavailable
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops.check import check_backend
from dsv4kv.ops.check.calls import scenes_of
from dsv4kv.ops.check.maker import make_call
from dsv4kv.ops.registry import resolve_backend
from tests.ops.peers import standins
from tests.ops.peers.caches import CACHES, cache

CPU = torch.device("cpu")
Write = Callable[..., None]

STANDINS = "from tests.ops.peers.standins import"
FLASHMLA = f"{STANDINS} flash_mla_with_kvcache, get_mla_metadata\n"
DEEPGEMM = f"{STANDINS} fp8_fp4_paged_mqa_logits, get_num_sms, get_paged_mqa_logits_metadata\n"
READERS = {
    "flashmla": ("flash_mla.flash_mla_interface", FLASHMLA),
    "deepgemm": ("deep_gemm", DEEPGEMM),
}
OPERATIONS = {"flashmla": {"attend"}, "deepgemm": {"index_scores"}}

FP8_KEYS = ("fp8_ds_mla", "fp8_ds_mla", "fp8")
PAGES: dict[str, dict[str, CachePlan]] = {
    "flashmla": {name: CACHES[name] for name in ("as shipped", "long blocks", "drafts")},
    "deepgemm": {
        "V4": cache(FP8_KEYS, block_tokens=256),
        "V4.1, candidate blocks": cache(("fp4", "fp8_group32", "fp8"), "v4.1-flash"),
    },
}
EACH = [(name, pages) for name, plans in PAGES.items() for pages in plans]

each_reader = pytest.mark.parametrize("name", READERS)


@pytest.mark.parametrize(("name", "pages"), EACH)
def test_bridged_reads_equal_the_reference(name: str, pages: str, write_module: Write) -> None:
    write_module(*READERS[name])
    resolved = resolve_backend(name, "reference")
    assert set(resolved.foreign) == OPERATIONS[name]
    assert check_backend(resolved, PAGES[name][pages], CPU) == []


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("flashmla", "vllm.third_party.flashmla.flash_mla_interface"),
        ("deepgemm", "vllm.third_party.deep_gemm"),
    ],
)
def test_vllms_own_copy_is_found(name: str, module: str, write_module: Write) -> None:
    write_module(module, READERS[name][1])
    resolved = resolve_backend(name, "cpu")
    (plan, *_) = PAGES[name].values()
    assert check_backend(resolved, plan, CPU) == []


@each_reader
def test_a_kernel_sees_the_pools_own_bytes_and_bridging_calls_none(
    name: str, write_module: Write
) -> None:
    write_module(*READERS[name])
    resolved, (plan, *_) = resolve_backend(name, "cpu"), PAGES[name].values()
    (operation,) = OPERATIONS[name]
    scene = next(each for each in scenes_of(plan, 0) if each.operation == operation)
    call = make_call(scene.make, CPU, 0)
    standins.caches_seen.clear()
    getattr(resolved.backend, operation)(*call.arguments)
    assert standins.caches_seen[0].data_ptr() == call.arguments[0].pages.data_ptr()
    standins.caches_seen.clear()
    getattr(resolved.bridging, operation)(*call.arguments)
    assert standins.caches_seen == []


def test_attention_to_pages_of_which_some_are_of_another_format_is_the_bases(
    write_module: Write,
) -> None:
    write_module(*READERS["flashmla"])
    mixed = cache(("bf16", "fp8_ds_mla", "mxfp4"))
    standins.caches_seen.clear()
    assert check_backend(resolve_backend("flashmla", "cpu"), mixed, CPU) == []
    assert standins.caches_seen  # the layer that has a window alone


@pytest.mark.parametrize(
    ("name", "package", "distribution"),
    [("flashmla", "flash_mla", "sgl-flash-mla"), ("deepgemm", "deep_gemm", "sgl-deep-gemm")],
)
def test_a_package_that_is_absent_is_named_with_what_to_install(
    name: str, package: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.ops.peers.foreign.find_spec", lambda _: None)
    with pytest.raises(PeerUnavailable) as refusal:
        resolve_backend(name, "cpu")
    assert str(refusal.value) == (
        f"backend {name} needs the package {package}, which is not installed: "
        f"pip install {distribution}."
    )
