"""The model checker, over a manager in plain Python: what is planted is found and made short."""

import json
import random
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4kv.diagnose import conform as se
from dsv4kv.diagnose.conform import conform, drive
from dsv4kv.diagnose.conform import driven as broken
from dsv4kv.errors import PeerUnavailable
from tests.diagnose.conform.toy import TRAITS, Toy


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("unchained", "hits"), ("misses", "hits"), ("stuck", "ends"), ("leak", "blocks"),
        ("raises", "calls"), ("", ""),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found_and_shrunk(fault: str, kind: str) -> None:
    verdict = conform(Toy(fault), 4000, seed=0)
    assert [*verdict.failures] == [kind] * bool(kind)
    assert verdict.operations >= 4000
    for found in verdict.failures.values():
        assert found.repeats
        assert len(found.sequence.operations) <= 6
        assert [*Toy(fault).ask(found.sequence)["broken"]] == [kind]
        assert not Toy().ask(found.sequence)["broken"]


def test_a_fault_that_does_not_repeat_is_reported_as_it_was_seen() -> None:
    """What loses the block counts beyond the sequence, which alone does not break anything."""
    verdict = conform(Toy("wears"), 4000, seed=0)
    failure = verdict.failures["blocks"]
    assert not failure.repeats
    assert "1 of 199 blocks are lost" in failure.says
    assert len(failure.sequence.operations) == 200
    assert 0 < failure.found_after <= verdict.operations
    assert verdict.broken["blocks"] >= 1


def test_a_false_hit_breaks_what_is_read_and_what_the_rule_says() -> None:
    """After the first invariant that breaks the sequence goes on."""
    verdict = conform(Toy("false"), 4000, seed=0)
    assert verdict.failures.keys() == {"reads", "hits"}
    assert verdict.broken["hits"] == verdict.broken["reads"] > 0


def test_a_shorter_sequence_is_held_against_what_the_rule_says_of_it() -> None:
    """Without the prompt that was hit, the next one hits less."""
    first, second = [1, 2, 3], [1, 2, 4]
    drawn = se.draw_vllm(random.Random(0), TRAITS)
    settings = drawn.settings | {"blocks": 8000, "speculation": "none"}
    both = se.Sequence(settings, (("serve", 0, first, 768, 0), ("serve", 1, second, 768, 0)))
    alone = se.Sequence(settings, both.operations[1:])
    assert [operation[4] for operation in se.expect(both).operations] == [0, 512]
    assert [operation[4] for operation in se.expect(alone).operations] == [0]


@pytest.mark.parametrize("engine", se.DRAWN)
def test_every_prompt_fits_the_context_and_the_pools_hold_it(engine: str) -> None:
    known = {"lookahead": True, "retention": True, "newest": True}
    drawn = [se.DRAWN[engine](random.Random(seed), known) for seed in range(40)]
    for sequence in drawn:
        settings = sequence.settings
        longest = settings["context"]
        ahead = (1 + settings.get("ahead", False)) * settings["chunk_tokens"]
        least = se.least_blocks(longest, ahead) if engine == "vllm" else longest // broken.PAGE
        assert settings["blocks"] >= least
        admitted = [op for op in sequence.operations if op[0] == "admit"]
        assert all(tokens + output <= longest for *_, tokens, output in admitted)
    assert {sequence.operations[0][0] for sequence in drawn} == {"serve", "admit"}


def test_the_least_pool_is_what_vllm_asks_for() -> None:
    """``ceil(n/256) + 2(ceil(m/64)+1) + ceil(k/4)+1 + ceil(m/8)+1`` of a chunk of 512."""
    n, m, k = 1600, 127 + 512, 7 + 512
    tails = 2 * (-(-m // 64) + 1) + -(-k // 4) + 1 + -(-m // 8) + 1
    assert se.least_blocks(n, 512) == -(-n // 256) + tails


@pytest.mark.parametrize(
    ("held", "free", "counted", "says"),
    [
        ([0, 1, 0, 0], [2, 3], 2, ""), ([0, 1, 0, 0], [2], 1, "1 of 3 blocks are lost"),
        ([0, 1, 0, 0], [2, 3, 3], 3, "free twice"), ([0, 1, 0, 0], [1, 2, 3], 3, "free and held"),
        ([0, 1, 0, 0], [2, 3], 3, "counts 3"),
    ],
)  # fmt: skip
def test_a_block_is_free_or_held(
    held: list[int], free: list[int], counted: int, says: str
) -> None:
    broken.NOTED.clear()
    broken.check_free(held, free, counted)
    assert [*broken.NOTED] == (["blocks"] if says else [])
    assert says in broken.NOTED.get("blocks", "")


def test_an_engine_that_is_not_installed_is_a_sentence() -> None:
    with (
        pytest.raises(PeerUnavailable, match=r"vllm is not installed there.*--python"),
        drive("vllm"),
    ):
        pass
    with (
        pytest.raises(PeerUnavailable, match="holds no folder vllm"),
        drive("vllm", package=Path(__file__).parent),
    ):
        pass


def test_questions_and_answers_are_lines(tmp_path: Path) -> None:
    """As the driver's process has them."""
    session = SimpleNamespace(apply=lambda _: None, end=lambda: None)
    driver = SimpleNamespace(
        NAME="toy", load=lambda _: "engine", traits=lambda _: {}, Session=lambda *_: session
    )
    question = asdict(se.Sequence({}, (("step", 0),)))
    with (tmp_path / "told").open("w+") as told:
        broken.serve(driver, None, [json.dumps(question)], told)
        told.seek(0)
        told_lines = [json.loads(line) for line in told]
    assert told_lines == [{"version": "unknown", "traits": {}}, {"broken": {}, "done": 1}]


class Stubborn(Toy):
    """The first sequence breaks as long as it has fifty operations, later ones with three."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, object] = {}

    def ask(self, sequence: se.Sequence) -> dict[str, Any]:
        self.first = self.first or sequence.settings
        least = 50 if sequence.settings == self.first else 3
        broken = {"blocks": ("lost", least)} if len(sequence.operations) >= least else {}
        return {"broken": broken, "done": least}


def test_where_the_first_failure_stays_long_the_next_ones_are_shrunk_as_well() -> None:
    """What it takes may be spread over operations of which none can be left out alone."""
    failure = conform(Stubborn(), 400, seed=1).failures["blocks"]
    assert len(failure.sequence.operations) == 3
    assert failure.found_after == 50
