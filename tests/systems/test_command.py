"""``dsv4kv bench systems``: one table, every output verified, and a defect is found."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.bench.block_system import RoutingStore
from dsv4kv.bench.slot_system import KvRows, SlotScheduler
from dsv4kv.cache.manager import BlockTable
from dsv4kv.cli import app
from dsv4kv.ops import cpu
from tests.systems.small import SETTINGS

TERMINAL = {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}


def systems(*arguments: str) -> Result:
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    return CliRunner(env=TERMINAL).invoke(app, ["bench", "systems", *options, *arguments])


def test_one_table_and_document_have_memory_and_reuse_of_the_three(tmp_path: Path) -> None:
    file = tmp_path / "systems.json"
    result = systems("--json", str(file))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    for system, quantity in (("pools", "block tables"), ("blocks", "requests deferred")):
        assert any(line.startswith(system) and quantity in line for line in lines), quantity
    assert "comparisons with the reference are equal: pools, slots, blocks" in lines[0]
    document = json.loads(file.read_text())
    assert [each["system"] for each in document["systems"]] == ["pools", "slots", "blocks"]
    for system in document["systems"]:
        assert system["failures"] == []
        assert sum(system["checks"].values()) > 10
        for row in system["rows"]:
            assert row["value"] >= 0
            assert row["unit"] in ("B", "tokens", "blocks", "requests")


def test_blocks_that_hold_no_conversation_are_refused_before_anything_is_run() -> None:
    result = systems("--axis", "blocks.block_tokens=16,8")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "raise blocks.rank_blocks, or shorten chat" in " ".join(result.stderr.split())


# ---- planted defects ----------------------------------------------------------------------------


def short_copy(rows: KvRows, source: int, target: int, tokens: int) -> None:
    rows.kv[target, : tokens - 1] = rows.kv[source, : tokens - 1]


def a_token_too_late(scheduler: SlotScheduler, tokens: Any, found: Any) -> Any:
    seat = ORIGINAL[SlotScheduler](scheduler, tokens, found)
    return replace(seat, start=seat.start + 1) if seat and seat.start else seat


def forgets_a_place(store: RoutingStore, ids: Any, routing: Any, first: int = 0) -> None:
    ORIGINAL[RoutingStore](store, ids, routing[::-1] + 1, first)


def one_row_off(**tensors: Any) -> None:
    ORIGINAL[cpu](**tensors)
    tensors["out"][:] = tensors["out"].roll(1, dims=1)


def leaks(table: BlockTable, slot: int) -> Any:
    ids = ORIGINAL[BlockTable](table, slot)
    table.allocator.acquire(1)
    return ids


ORIGINAL: dict[object, Callable[..., Any]] = {
    SlotScheduler: SlotScheduler.begin,
    RoutingStore: RoutingStore.store,
    cpu: cpu.gather_window,
    BlockTable: BlockTable.clear,
}


@pytest.mark.parametrize(
    ("owner", "method", "defect", "system"),
    [
        (KvRows, "copy", short_copy, "slots"),
        (SlotScheduler, "begin", a_token_too_late, "slots"),
        (RoutingStore, "store", forgets_a_place, "blocks"),
        (cpu, "gather_window", one_row_off, "pools"),
        (BlockTable, "clear", leaks, "pools"),
    ],
)
def test_a_planted_defect_is_found_and_fails_the_run(
    owner: object,
    method: str,
    defect: Callable[..., Any],
    system: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, method, defect)
    users = ["--set", "chat.users=16", "--set", "chat.begin=6", "--set", "slots.slots=10"]
    result = systems("--set", f"run={system}", *users)
    assert result.exit_code in (5, 6), result.output
    assert "error: " in result.stderr
    if result.exit_code == 6:
        assert f"error: {system}: " in result.stderr
        assert "comparisons with the reference failed" in result.stdout
