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
