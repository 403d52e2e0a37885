"""``dsv4kv bench tiers``: real prefixes there and back, in two tables and an answer."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.bench.library import MemoryStore
from dsv4kv.bench.objects import CacheBytes, Objects
from dsv4kv.bench.serve import inputs
from dsv4kv.bench.tiers import PrefixRow, TiersOutcome
from dsv4kv.cli import app
from dsv4kv.errors import StoreUnavailable
from dsv4kv.runs.statistics import Estimate

TERMINAL = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
SMALL = ("model.layers=[0,2,3]", "lengths=[256,768]", "rounds=7")


@pytest.fixture(autouse=True)
def few_data() -> Iterator[None]:
    with patch.object(inputs, "_DISTINCT_ENTRIES", 512):
        yield


def tiers(*arguments: str, folder: Path) -> Result:
    settings = [*SMALL, f"folder={folder}"]
    options = [word for setting in settings for word in ("--set", setting)]
    return CliRunner(env=TERMINAL).invoke(app, ["bench", "tiers", *options, *arguments])


def test_prefixes_come_back_right_and_leave_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tiers.json"
    done = tiers("--json", str(file), folder=tmp_path / "cache")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:2] == ["memory", "768"] for line in lines)
    words = " ".join(line.strip() for line in lines)
    assert "comparisons are equal: digests, and after further steps every bit" in words
    assert "file: 768 tokens are back in " in words
    assert list((tmp_path / "cache").iterdir()) == []

    document: dict[str, Any] = json.loads(file.read_text())
    assert [(row["store"], row["tokens"]) for row in document["prefixes"]] == [
        (store, tokens) for store in ("memory", "file") for tokens in (256, 768)
    ]
    assert document["checks"] == 28  # seven families of four prefixes
    assert document["failures"] == []
    for row in document["prefixes"]:
        assert row["read_bytes"] > row["useful_bytes"] > 0
        assert row["restored"]["half_width"] is not None


def test_bytes_that_come_back_wrong_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = CacheBytes.take

    def wrong(cache: CacheBytes, family: Any, ids: Any, into: Objects) -> None:
        take(cache, family, ids, into)
        if family.name == "csa_state":
            into[..., 0::2] = 0

    monkeypatch.setattr(CacheBytes, "take", wrong)
    done = tiers("--set", "stores=[memory]", "--set", "lengths=[256]", folder=tmp_path)
    assert done.exit_code == 6
    assert "comparisons failed" in done.stdout
    assert "error: memory, 256 tokens: csa: object 1" in done.stderr


@pytest.mark.parametrize(
    ("put", "sentence"),
    [
        (Mock(), "256 tokens were stored and 0 came back"),
        (Mock(side_effect=StoreUnavailable("NOAUTH Authentication required")), "error: NOAUTH"),
    ],
)
def test_a_store_that_loses_objects_or_fails_fails_the_run_with_its_cause(
    put: Mock, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "put", put)
    done = tiers("--set", "stores=[memory]", "--set", "lengths=[256]", folder=tmp_path)
    assert done.exit_code == 5
    assert sentence in " ".join(done.stderr.split())


def made_up(computed_ns: float | None) -> TiersOutcome:
    """2,048 tokens are back in 10 ms, 65,536 in 100 ms; computing takes ``computed_ns`` each."""
    outcome = TiersOutcome("v4-flash", "1 × h200", checks=12)
    for tokens, restored in ((2_048, 1e7), (65_536, 1e8)):
        times = Estimate(3e7, 3e6), Estimate(restored, restored / 10)
        row = PrefixRow("file", tokens, 7_885_312, 12_000_000, *times, computed_ns)
        outcome.prefixes.append(row)
    return outcome


def test_the_answer_says_whether_it_is_worth_it() -> None:
    (answer,) = made_up(5e7).answers()
    assert answer == (
        "file: 65,536 tokens are back in 100 ms, computing them takes 50 ms (modelled): "
        "restoring is worth it from 2,048 tokens."
    )
    assert "worth it at every length" in made_up(5e8).answers()[0]
    assert "worth it at none of these lengths" in made_up(5e6).answers()[0]
    assert "is not known for this model" in made_up(None).answers()[0]


def test_the_answer_claims_no_more_than_its_intervals_know() -> None:
    outcome = made_up(5e8)
    wide = Estimate(1e8, 6e8, (1e8, 6e8))
    outcome.prefixes[-1] = replace(outcome.prefixes[-1], restored=wide)
    (answer,) = outcome.answers()
    assert "are back in less than 700 ms" in answer
    assert "worth it from 2,048 tokens, as far as these times are known." in answer
