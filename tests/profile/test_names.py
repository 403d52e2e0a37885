"""Kernel names and what they say of a kernel."""

import os
import re
from itertools import product
from pathlib import Path
from time import process_time

import pytest
import yaml

from dsv4kv.errors import ConfigError
from dsv4kv.ops.cuda.inspection import catalogue
from dsv4kv.profile.table import Rule, find_rule, read_rules, shipped_rules, shorten

KERNELS = yaml.safe_load(Path(__file__).with_name("engine_kernels.yaml").read_text("utf-8"))
ENGINES: dict[str, dict[str, list[str]]] = KERNELS["engines"]
SHORT = {
    "gather_topk": "gather_topk",
    "aten::add_": "add_",
    "void flash::combine_kernel<cutlass::bfloat16_t, 512>(Params)": "combine_kernel",
    "void (anonymous namespace)::flash_c4_decode<128l, float, true>(P)": "flash_c4_decode",
    "void at::native::(anonymous namespace)::fill<4, std::array<char*, 1ul> >(int)": "fill",
    "at::native::reduce<int>": "reduce",
    "Memcpy DtoH (Device -> Pinned)": "Memcpy DtoH (Device -> Pinned)",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<int, 3> > >(P)": (
        "FlashAttnFwdSm90"
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16>(T1::Params)": (
        "cutlass_80_tensorop_s16816gemm_bf16"
    ),
    "void cutlass::device_kernel<4>(int)": "device_kernel",
    "void mine::Kernel2(int)": "Kernel2",
    "_ZN4vllm32indexer_k_quant_and_cache_kernelIfEEvPT_": "indexer_k_quant_and_cache_kernel",
    "_ZN12_GLOBAL__N_115flash_c4_decodeILl512EEEvv": "flash_c4_decode",
    "_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90INS1_24Coll": (
        "FlashAttnFwdSm90"
    ),
    "_ZN7cutlass7Kernel2I10cutlass_tnEEvNT_6ParamsE": "cutlass_tn",
    "_ZN7cutlass13device_kernelILi4EEEvi": "device_kernel",
    "void ck_tile::kentry<2, ck_tile::MoeSortingKernel<int> >(P)": "MoeSortingKernel",
    "void Kernel<" + "11:gfx9," * 40 + "9" * 9_000 + "<>(int)": "Kernel",
    "void ck_tile::kentry<ck_tile::gfx9_t, 1, ck_tile::Layernorm2dFwd<int> >(P)": "Layernorm2dFwd",
    "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipe": "Rmsnorm2dFwd",
    "_Zebra": "_Zebra",
    "": "",
}
OWN = {
    "insert": "window_insert entry_insert",
    "compress": "norm_rope_insert state_append flush compress_chunk",
    "gather": "gather_topk gather_all gather_window",
}


@pytest.mark.parametrize(("name", "short"), SHORT.items())
def test_a_short_name_is_the_functions_own(name: str, short: str) -> None:
    assert shorten(name) == short


def test_a_name_of_kernels_within_kernels_is_cut() -> None:
    begun_s = process_time()
    shorten("device_kernel<" * 300_000 + "a")
    assert process_time() - begun_s < 5


@pytest.mark.parametrize(("blanks", "known"), [(2_000, True), (2_100, False)])
def test_rules_look_at_the_begin_of_a_name(blanks: int, known: bool) -> None:
    rule = Rule("mine", re.compile("flush"), "compress")
    assert (find_rule(" " * blanks + "flush", [rule]) is rule) == known


@pytest.mark.parametrize("engine", ENGINES)
def test_kernels_of_todays_engines_are_known_by_what_they_do(engine: str) -> None:
    for category, names in ENGINES[engine].items():
        for name in names:
            rule = find_rule(name, shipped_rules())
            assert rule is not None, name
            assert (rule.engine, rule.category) == (engine, category), name


@pytest.mark.parametrize("name", KERNELS["others"])
def test_kernels_that_are_no_work_on_a_cache_are_known_by_no_rule(name: str) -> None:
    assert find_rule(name, shipped_rules()) is None


def test_every_rule_of_an_engine_has_an_example() -> None:
    listed = [name for kinds in ENGINES.values() for names in kinds.values() for name in names]
    used = {find_rule(name, shipped_rules()) for name in listed}
    unused = {rule.pattern.pattern for rule in shipped_rules() if rule.engine != "dsv4kv"}
    unused -= {rule.pattern.pattern for rule in used if rule}
    assert not unused


def test_every_kernel_of_the_toolkit_is_known_as_its_own() -> None:
    for example in catalogue():
        rule = find_rule(example.launch.kernel, shipped_rules())
        assert rule is not None, example.launch.kernel
        assert rule.engine == "dsv4kv"
        assert rule.operation or example.subject == "16-byte chunks"


@pytest.mark.parametrize("category", OWN)
def test_every_marked_operation_is_known_as_its_own(category: str) -> None:
    for name, prefix in product(OWN[category].split(), ("", "indexer_")):
        rule = find_rule(f"{prefix}{name} csa", shipped_rules())
        assert rule is not None
        assert (rule.operation, rule.category) == ("itself", "indexer" if prefix else category)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000, "engine: 7\nrules: {gather: [x]}", "engine: x\nrules: {gather: {x: 3}}",
        "engine: x\nrules: {gather: {x: [1]}}",
        f"engine: x\nrules: {{gather: {{x: {'9' * 5_000}}}}}", "engine: x\nrules: {gather: [(]}",
        "engine: x\nrules: {gather: ['a{99999999999}']}",
        f"engine: x\nrules: {{gather: [{'a' * 1_001}]}}", "x" * 2**19, None,
    ],
    ids=["deep", "engine", "operation", "list", "digits", "open", "again", "wide", "long", "pipe"],
)  # fmt: skip
def test_rules_that_are_none_are_refused(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"no rules: write 'engine|cannot be read|no pattern"):
        read_rules(path)
