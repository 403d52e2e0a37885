"""What an engine has written is found by its own names, and never written to."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsv4kv.engines.sglang.files import PageFiles, event_id, page_digests
from dsv4kv.engines.vllm.files import BlockFiles, block_hashes
from dsv4kv.errors import StoreUnavailable
from dsv4kv.tiers.stores.raw_files import RawFiles
from tests.tiers.stores.kinds import content, poisoned

# Bytes of a page in HiCache's pools, Flash: the first holds nothing, most are no whole 4,096.
POOLS = {"kv": 0, "deepseek_v4_c4": 786_240, "deepseek_v4_c4_indexer": 177_408,
         "deepseek_v4_c128": 34_560}  # fmt: skip


def test_the_pages_of_the_first_tokens_have_the_digests_that_sglang_gives_them() -> None:
    first, second = page_digests(np.arange(600))  # a page that is not whole has none
    assert first.hex() == "8808405eec6fbe306fe3369f88daed79dd5613ddbb5e801f632b01d6218c5f08"
    assert second.hex() == "705440bca5981da70aa2be86254ecd2a1d66e6b280edf72ba0c3b17074bb9061"
    assert event_id(first) == -8644588708299817424


def test_hicaches_pages_are_read_by_the_tokens_of_a_prompt(tmp_path: Path) -> None:
    files, digests = PageFiles("deepseek-ai/DeepSeek-V4-Flash"), page_digests(np.arange(512))
    for number, digest in enumerate(digests):
        for pool, size in POOLS.items():
            (tmp_path / files.name(digest, pool)).write_bytes(content(number, size).tobytes())
    store = RawFiles(tmp_path)
    for pool, size in POOLS.items():
        names = [files.name(digest, pool) for digest in page_digests(np.arange(768))]
        rooms = [poisoned(size) for _ in names]
        assert store.exists(names).tolist() == [True, True, False]
        assert store.get(names, rooms).tolist() == [True, True, False]
        assert all((room == content(number, size)).all() for number, room in enumerate(rooms[:2]))
    store.close()


def test_vllms_blocks_are_read_by_the_tokens_of_a_prompt(tmp_path: Path) -> None:
    """The fields come from the ``config.json`` that the engine left."""
    fields = {"model_name": "deepseek-ai/DeepSeek-V4-Flash", "tokens_per_hash": 4}
    written = BlockFiles(fields)
    (tmp_path / written.folder).mkdir()
    (tmp_path / written.folder / "config.json").write_text(json.dumps(fields, indent=2))
    block = tmp_path / written.name(block_hashes(range(256))[-1], group=0)
    block.parent.mkdir(parents=True)
    block.write_bytes(content(1, 1_002_240).tobytes())

    config = next(tmp_path.glob("*/config.json"))
    files, room = BlockFiles(json.loads(config.read_text())), poisoned(1_002_240)
    assert files.folder == config.parent.name
    hashes = block_hashes(range(512))
    names = [files.name(hashes[end // 4 - 1], group=0) for end in (256, 512)]
    store = RawFiles(tmp_path)
    assert store.get(names, [room, room[:1]]).tolist() == [True, False]
    assert (room == content(1, 1_002_240)).all()
    store.close()


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 9000])
def test_a_file_of_another_length_is_not_found(size: int, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content(1, size).tobytes())
    store = RawFiles(tmp_path)
    for wanted in {max(0, size - 1), size, size + 1, size + 4096}:
        assert store.get(["x"], [poisoned(wanted)]).tolist() == [wanted == size]
    store.close()


@pytest.mark.parametrize("call", [
    lambda store: store.put(["x"], [content(1, 1)]),
    lambda store: store.delete(["x"]),
    lambda store: store.get(["folder"], [poisoned(1)]),
    lambda store: RawFiles(store.folder / "nothing"),
], ids=["put", "delete", "get a folder", "open nothing"])  # fmt: skip
def test_what_cannot_be_done_is_a_sentence_and_changes_nothing(
    call: Callable[[RawFiles], object], tmp_path: Path
) -> None:
    (tmp_path / "x").write_text("mine")
    (tmp_path / "folder").mkdir()
    store = RawFiles(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"\.$"):
        call(store)
    assert (tmp_path / "x").read_text() == "mine"
    store.close()
