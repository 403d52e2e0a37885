"""Profiles: whole outputs, and what spoils them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from dsv4kv.runs.parts import KernelTable, OperationRow, Profile
from dsv4kv.view import profile as pr
from tests.profile.exports import Export, two_replays
from tests.profile.kernel_profiles import YARDSTICK, from_kineto, from_nsys, make_profile
from tests.view.terminal import shown, words


def said(profile: Profile) -> str:
    return words(pr.profile_page(profile, YARDSTICK).answer)


@pytest.mark.parametrize("read", [from_nsys, from_kineto])
def test_a_profile(
    read: Callable[[Path], KernelTable], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    page = pr.profile_page(make_profile(read(tmp_path)), YARDSTICK)
    answer = shown(*page.answer)
    assert answer == snapshot
    assert len(answer.split("\n")) <= 23
    assert shown(*page.parts(verbose=True)) == snapshot


def test_warnings_come_first_and_what_is_outside_of_steps_is_a_share(tmp_path: Path) -> None:
    export = two_replays()
    export.add("DIAGNOSTIC_EVENT", timestamp=0, severity=3, text="buffers were lost")
    export.call(77, 500_000, 501_000)
    export.kernel("behind", 77, 502_000, 566_000)
    page = pr.profile_page(make_profile(from_nsys(tmp_path, export)), YARDSTICK)
    assert shown(*page.answer).startswith("! nsys: buffers were lost\n")
    assert "excluded: 1 piece of work outside every step, 64.0 µs, 50.0 %" in words(
        page.parts(verbose=True)
    )


def test_the_headline_is_the_share_of_the_cache(tmp_path: Path) -> None:
    export = two_replays()
    export.kernel("flash_fwd_splitkv_mla_kernel", 100, 70_000, 80_000)
    export.kernel("nvjet_gemm", 100, 80_000, 108_000)
    # 60 of 100 µs: three kernels of 20, beside attention's 10, a product of 28 and a fill of 2
    assert said(make_profile(from_nsys(tmp_path, export))).startswith(
        "Work on the KV cache: 60.0 % of busy time, synthetic inputs excluded, attention 10.0 %, "
        "GEMMs 28.0 %, not classified 2.0 %; the GPU idles 21.5 % of the step. ! a step takes "
        "65.0 ± ? µs on the GPU: 2 steps, too few for an interval "
    )


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        ("nvjet_gemm", "! no kernel is classified, so the KV cache's cost is unknown"),
        ("my_kv_cache_copy", "! not classified, but named like cache kernels: my_kv_cache_copy"),
        ("flash_fwd_splitkv_mla_kernel", "KV cache: 0.0 % of busy time, attention 100.0 %"),
    ],
)
def test_what_no_rule_knows_is_no_good_news(kernel: str, sentence: str, tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 20_000)
    export.call(1, 1_000, 2_000)
    export.kernel(kernel, 1, 3_000, 9_000)
    text = said(make_profile(from_nsys(tmp_path, export)))
    assert sentence in text
    assert "✓" not in text


def test_a_servers_range_of_our_name_is_its_work_and_what_is_next_is_no_product(
    tmp_path: Path,
) -> None:
    table = from_nsys(tmp_path, two_replays())
    assert {row.phase for row in table.kernels} == {"replay", "inputs"}
    theirs = make_profile(table).model_copy(update={"step_requests": []})
    for profile in (make_profile(table), theirs):
        found = said(profile)
        assert ("synthetic inputs excluded" in found) == (profile is not theirs)
        assert "the GPU idles 25.6 % of the step. " in found
        assert "· look next at idle time: 25.6 % of the step, longest before window_i" in found
    assert table.steps
    steps = table.steps.model_copy(update={"gap_ns": [0, 0]})
    first, *others = table.kernels
    longer = {"name": "nvjet_gemm", "category": "other", "total_ns": 9 * first.total_ns}
    rows = [first.model_copy(update=longer), first, *others]
    busy = table.model_copy(update={"steps": steps, "kernels": rows})
    found = said(make_profile(busy))
    assert "idle" not in found.partition("Kernel classes")[0]
    assert "· look next at insert: " in found


def audited(table: KernelTable, **dram_bytes: int) -> KernelTable:
    """The table as ncu would have counted."""
    rows = [
        row.model_copy(update={"dram_bytes": dram_bytes[row.name]}) for row in table.operations
    ]
    return table.model_copy(update={"operations": rows, "tool": "ncu"})


def test_bytes_beyond_what_must_be_moved_are_judged(tmp_path: Path) -> None:
    table = from_nsys(tmp_path)
    well = audited(table, window_insert=21_000, flush=90_000, gather_topk=87_000)
    assert "no gather and no insert moves over 1.10 times what it must" in said(make_profile(well))
    badly = audited(table, window_insert=21_000, flush=40_000, gather_topk=120_000)
    assert "✗ gather_topk moves 1.50 times what it must" in said(make_profile(badly))
    for useful, moved in ((None, 5), (0, 5), (5, None)):
        row = OperationRow(
            name="flush",
            category="gather",
            calls=1,
            total_ns=1,
            useful_bytes=useful,
            dram_bytes=moved,
        )
        assert (pr.amplification(row), pr.is_amplified(row)) == (None, False)


def test_a_step_on_several_gpus_is_one_step(tmp_path: Path) -> None:
    export = two_replays()
    for device in range(2):
        export.add("TARGET_INFO_GPU", id=device, name="A GPU", cuDevice=device)
    for step in range(2):
        export.kernel("flush", 100 + step, step * 100_000 + 40_000, 140_000, deviceId=1)
    text = words(
        pr.profile_page(make_profile(from_nsys(tmp_path, export)), None).parts(verbose=True)
    )
    assert "Step 2 steps on 2 GPUs" in text
    assert ", 2 × A GPU: " in text
    assert "% of copy" not in text
