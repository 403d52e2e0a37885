"""Pages, blocks and their files are named as the engines' own code names them."""

import os
from pathlib import Path

import pytest

from dsv4kv.engines.sglang.files import PageFiles, event_id, namespace_digest, page_digests
from dsv4kv.engines.vllm.files import SEED, BlockFiles, block_hashes
from tests.engines.oracles.named import FILES, SETTINGS, ask, read


def test_sglangs_pages_events_and_files_have_its_own_names() -> None:
    rows = read("sglang")
    assert len(rows) == SETTINGS
    for asked in rows:
        before = namespace_digest(asked["extra_key"], asked["salt"])
        digests = page_digests(asked["tokens"], asked["page"], before)
        files = PageFiles(
            asked["model"],
            stages=asked["stages"],
            stage=asked["stage"],
            context_ranks=asked["ranks"],
            context_rank=asked["rank"],
        )
        assert asked["answer"] == {
            "digests": [digest.hex() for digest in digests],
            "events": [event_id(digest) for digest in digests],
            "files": sorted(files.name(digests[-1], pool) for pool in asked["pools"]),
        }


def test_vllms_blocks_folders_and_files_have_its_own_names() -> None:
    rows = read("vllm")
    assert len(rows) == SETTINGS
    for asked in rows:
        told, seed = asked["answer"], SEED if asked["seed"] is None else asked["seed"]
        hashes = block_hashes(asked["tokens"], asked["hash_tokens"], seed=seed)
        files = BlockFiles(told["fields"], told["rank"])
        assert told["hashes"] == [each.hex() for each in hashes]
        assert told["config"] == f"root/{files.folder}/config.json"
        assert told["file"] == f"root/{files.name(hashes[-1], asked['group'])}"


@pytest.mark.skipif(
    "DSV4KV_ENGINES" not in os.environ,
    reason="the engines' packages are not unpacked here: make engines",
)
@pytest.mark.parametrize("engine", FILES)
def test_the_engines_name_them_as_recorded(engine: str) -> None:
    assert ask(engine, Path(os.environ["DSV4KV_ENGINES"])) == read(engine)
