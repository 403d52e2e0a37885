"""Reasons and remedies by rule, and what a sweep over rules says."""

from dataclasses import fields

from dsv4kv.engines.names import RULES
from dsv4kv.prefix.outcome import Losses
from dsv4kv.runs.replay import Reuse
from dsv4kv.runs.schema import Case
from dsv4kv.view.replay import compare_rules, name_loss, name_remedy
from tests.replay.test_run import run


def test_every_reason_has_a_name_and_every_rule_a_remedy_for_it() -> None:
    reasons = [field.name for field in fields(Losses)] + ["in_flight"]
    for rule in RULES:
        assert all(name_loss(reason) and name_remedy(rule, reason) for reason in reasons)
    assert all(rule.remedies for rule in RULES.values() if rule.engine)


def test_an_engine_is_never_told_to_change_what_it_does_not_have() -> None:
    for rule, row in ((name, row) for name, row in RULES.items() if row.engine):
        remedies = row.remedies
        lost = {"evicted_block", "alignment"}
        lost |= {"evicted_checkpoint"} if row.windows else set()
        lost |= {"no_checkpoint"} if row.windows and rule != "vllm-v4:dense" else set()
        assert lost <= set(remedies)
        assert not any("prefix.strategy" in remedy for remedy in remedies.values())


def swept(*rules: str, blocks: int = 3000) -> list[Case]:
    return run(
        f"cache.num_blocks={blocks}", "workload.arrivals=closed", "workload.concurrency=1",
        axes=(f"prefix.rule={','.join(rules)}",),
    ).cases  # fmt: skip


def test_a_sweep_over_rules_says_which_setting_saves_most() -> None:
    cases = swept("ideal", "vllm", "vllm-v4:dense", "vllm-v4:semantic")
    saved = {}
    for case in cases:
        assert case.replay
        saved[case.replay.reuse.rule] = case.replay.reuse.saved_tokens
    assert saved["vllm"] >= max(saved["vllm-v4:dense"], saved["vllm-v4:semantic"])
    (finding,) = compare_rules(cases)
    best, worst = sorted(("vllm-v4:dense", "vllm-v4:semantic"), key=lambda name: -saved[name])
    assert finding.sentence.startswith(f"{RULES[best].setting} ({best}) wins back ")
    assert finding.sentence.endswith(f" of all prompt tokens over {RULES[worst].setting}")


def test_rules_of_sglang_differ_by_a_setting_that_is_told() -> None:
    (finding,) = compare_rules(swept("sglang-v4:dense", "sglang-v4:tail", blocks=80))
    dense, tail = (RULES[f"sglang-v4:{name}"].setting for name in ("dense", "tail"))
    assert finding.sentence.startswith(f"{dense} (sglang-v4:dense) wins back ")
    assert finding.sentence.endswith(f" over {tail}")


def test_no_two_rules_are_one_setting() -> None:
    settings = [rule.setting for rule in RULES.values() if rule.setting]
    assert len(set(settings)) == len(settings)


def test_nothing_is_said_where_more_than_the_rule_differs() -> None:
    axes = ("prefix.rule=vllm-v4:dense,vllm-v4:semantic", "prefix.defer=true,false")
    assert compare_rules(run("cache.num_blocks=3000", axes=axes).cases) == []


def test_a_record_from_before_there_were_rules_is_one_of_the_ideal_rule() -> None:
    result = run().cases[0].replay
    assert result
    old = result.reuse.model_dump()
    del old["rule"], old["setting"]
    assert Reuse(**old) == result.reuse
