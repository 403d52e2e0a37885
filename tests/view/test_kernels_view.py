"""A profile on a terminal: its tables, what spoils it, and what the cache's share is."""

import json
from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from dsv4kv.runs.profile import KernelTable, MemoryAudit, MemoryMark, OperationRow, Profile
from dsv4kv.runs.quantities import Yardstick
from dsv4kv.runs.store import digest, dumps, load_record, save_record
from dsv4kv.view.profile import MOST_ROWS, amplification, is_amplified, report_profile
from tests.measure.profilers.exports import Export, two_replays
from tests.runs.kernel_profiles import YARDSTICK, from_kineto, from_nsys, make_profile
from tests.runs.records import make_case, make_record
from tests.view.terminal import shown


def told(profile: Profile, yardstick: Yardstick | None = YARDSTICK, *, full: bool = False) -> str:
    return shown(*report_profile(profile, yardstick, full=full))


def audited(table: KernelTable, **dram_bytes: int) -> KernelTable:
    """The table as ncu would have counted."""
    rows = [
        row.model_copy(update={"dram_bytes": dram_bytes[row.name]}) for row in table.operations
    ]
    return table.model_copy(update={"operations": rows, "tool": "ncu"})


def test_a_profile_of_a_gpu_is_told(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    assert told(make_profile(from_nsys(tmp_path))) == snapshot


def test_a_full_one_has_launches_too(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    assert told(make_profile(from_nsys(tmp_path)), full=True) == snapshot


def test_a_profile_of_a_cpu_is_told(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    profile = make_profile(from_kineto(tmp_path), why="asked for with --torch", step_requests=[2])
    assert told(profile) == snapshot


def test_shares_of_a_step_add_up(tmp_path: Path) -> None:
    text = told(make_profile(from_kineto(tmp_path)))
    # 20 µs of the step of 100 lie outside its one operation
    assert "operations add up to 80.0 % of the steps, and 20.0 % is outside any of" in text


def test_a_step_on_several_gpus_is_one_step(tmp_path: Path) -> None:
    export = two_replays()
    for device in range(2):
        export.add("TARGET_INFO_GPU", id=device, name="A GPU", cuDevice=device)
    for step in range(2):
        export.kernel("flush", 100 + step, step * 100_000 + 40_000, 140_000, deviceId=1)
    text = told(make_profile(from_nsys(tmp_path, export)))
    assert "A step  2 of them on 2 GPUs, µs" in text
    assert ", 2 × A GPU: " in text


def test_full_names_are_told_on_demand(tmp_path: Path) -> None:
    profile = make_profile(from_nsys(tmp_path))
    assert "void dsv::flush<int>(int*)" not in told(profile)
    assert "void dsv::flush<int>(int*)" in told(profile, full=True)


def test_rates_are_held_against_the_yardstick(tmp_path: Path) -> None:
    text = told(make_profile(from_nsys(tmp_path)))
    # 80,000 B in 20 µs are 4 GB/s, as much as the copy
    assert "gather_topk" in text
    assert " 4.00      100.0" in text


def test_without_a_yardstick_there_is_no_percentage(tmp_path: Path) -> None:
    assert (
        "100.0"
        not in told(make_profile(from_nsys(tmp_path)), None)
        .split("Kernels")[0]
        .split("Operations")[1]
    )


def test_warnings_come_first(tmp_path: Path) -> None:
    export = two_replays()
    export.add("DIAGNOSTIC_EVENT", timestamp=0, severity=3, text="buffers were lost")
    first, *_ = told(make_profile(from_nsys(tmp_path, export))).splitlines()
    assert first == "! nsys: buffers were lost"


def test_the_share_of_the_cache_is_a_sentence(tmp_path: Path) -> None:
    export = two_replays()
    export.kernel("flash_fwd_splitkv_mla_kernel", 100, 70_000, 80_000)
    export.kernel("nvjet_gemm", 100, 80_000, 108_000)
    text = told(make_profile(from_nsys(tmp_path, export)))
    # 60 of 100 µs: three kernels of 20, beside attention's 10, a product of 28 and a fill of 2
    share = "work on the KV cache: 60.0 % of the time without synthetic inputs (insert 20.0 %, "
    assert share in " ".join(text.split())
    assert text.endswith("attention 10.0 %, known by dsv4kv, FlashMLA")


def report_only(kernel: str, folder: Path) -> str:
    """The last line of a profile of one kernel."""
    export = Export()
    export.range("step", 0, 20_000)
    export.call(1, 1_000, 2_000)
    export.kernel(kernel, 1, 3_000, 9_000)
    return told(make_profile(from_nsys(folder, export))).replace("\n", " ")


def test_what_no_rule_knows_is_no_good_news(tmp_path: Path) -> None:
    text = report_only("nvjet_gemm", tmp_path)
    assert "! no rule knows any of the kernels, so what the KV cache costs is not known" in text
    assert "✓" not in text


def test_attention_without_work_on_the_cache_is_told_and_no_good_news(tmp_path: Path) -> None:
    text = report_only("flash_fwd_splitkv_mla_kernel", tmp_path)
    assert "· work on the KV cache: 0.0 % of the time, attention 100.0 %, known by" in text
    assert "✓" not in text


def test_the_share_outside_of_steps_is_told(tmp_path: Path) -> None:
    export = two_replays()
    export.call(77, 500_000, 501_000)
    export.kernel("behind", 77, 502_000, 566_000)
    text = told(make_profile(from_nsys(tmp_path, export)))
    assert "left out: 1 piece of work outside every step, 64.0 µs, 50.0 % of the capture's" in text


def test_kernels_beyond_the_first_are_counted_and_told_in_full(tmp_path: Path) -> None:
    export = two_replays()
    for number in range(MOST_ROWS):
        export.kernel(f"another_{number}", 100, 70_000 + number, 70_001 + number)
    profile = make_profile(from_nsys(tmp_path, export))
    assert "and 5 more: --full shows all" in told(profile)
    assert "another_14" not in told(profile)
    assert "another_14" in told(profile, full=True)


def test_kernels_of_one_short_name_are_numbered(tmp_path: Path) -> None:
    export = two_replays()
    for kind in ("int", "float"):
        name = export.string(f"void at::fill<{kind}>()")
        export.kernel("fill", 100, 70_000, 71_000, demangledName=name)
    text = told(make_profile(from_nsys(tmp_path, export)))
    assert "fill ·1" in text
    assert "fill ·2" in text


def test_bytes_beyond_what_must_be_moved_are_judged(tmp_path: Path) -> None:
    table = from_nsys(tmp_path)
    well = audited(table, window_insert=21_000, flush=90_000, gather_topk=87_000)
    assert "no gather and no insert moves over 1.10 times what it must" in told(make_profile(well))
    badly = audited(table, window_insert=21_000, flush=40_000, gather_topk=120_000)
    assert "✗ gather_topk moves 1.50 times what it must" in told(make_profile(badly))


def test_amplification_needs_both_counts() -> None:
    facts = {"name": "flush", "category": "gather", "calls": 1, "total_ns": 1}
    for useful, moved in ((None, 5), (0, 5), (5, None)):
        row = OperationRow(**facts, useful_bytes=useful, dram_bytes=moved)
        assert (amplification(row), is_amplified(row)) == (None, False)


def test_memory_is_told_against_the_plan(snapshot: SnapshotAssertion) -> None:
    marks = [
        MemoryMark(
            moment=moment,
            allocated_bytes=allocated,
            reserved_bytes=None,
            device_bytes=device,
            resident_bytes=300 << 20,
        )
        for moment, allocated, device in (("before", 0, 1 << 30), ("after", 64 << 20, 1100 << 20))
    ]
    audit = MemoryAudit(
        planned_bytes=64 << 20, pool_bytes=64 << 20, marks=marks, snapshot="memory.pickle"
    )
    profile = Profile(
        why="", command=[], files=[], step_requests=[], useful_bytes={}, table=None, memory=audit
    )
    assert told(profile) == snapshot


def test_a_profile_in_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    for table in (from_nsys(tmp_path), from_kineto(tmp_path)):
        record = make_record(make_case(profile=make_profile(table)))
        assert load_record(save_record(record, tmp_path).path) == record


def test_records_without_a_profile_are_read_as_before(tmp_path: Path) -> None:
    document = json.loads(dumps(make_record()))
    del document["content_sha256"], document["cases"][0]["profile"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document | {"content_sha256": digest(document)}))
    (case,) = load_record(path).cases
    assert case.profile is None
