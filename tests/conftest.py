"""Settings of the whole suite, and which of it is slow.

``pytest -m "not slow"`` leaves out what takes a compiler, a GPU's twin, a browser, many processes
or seconds; ``DSV4KV_HYPOTHESIS=fast`` draws ten examples of every property, where ``make check``
draws 20 and ``make full`` 100. ``make check-fast`` does both. A property that is worth more
examples or fewer says so by ``tests.examples``, and each run draws its part of them.
"""

import functools
import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from typer.main import get_command

from dsv4kv.cli import ENDINGS, progress
from tests.examples import FULL, WHOLE

# Several workers share the cores: a kernel's CPU twin runs its blocks on a worker's part of them,
# and a thread of it that waits must not spin. Read when the first thread starts.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _WORKERS)))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Machines that run the tests may be busy: an example that takes long is no defect.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A check draws the same ones every time; `make full` looks for others.
for _name, _examples in {"fast": 10, "check": 20, "full": WHOLE}.items():
    settings.register_profile(
        _name, parent=_PATIENT, max_examples=_examples, derandomize=_name != "full"
    )
settings.load_profile(os.environ.get("DSV4KV_HYPOTHESIS", "full" if FULL else "check"))

# Nor does a run that takes long here print that it goes on.
progress.EVERY_S = float("inf")

# Thousands of commands are the same tree of commands and options: it is made once.
vars(typer.testing)["_get_command"] = functools.cache(get_command)

# Ten thousand tests are many objects: no collector walks through them while they are found, nor
# time and again afterwards.
gc.disable()

# What tests serve here is asked directly, whatever proxy leads elsewhere.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost"

# What is printed is as in a pipe, but where a test says so. GITHUB_ACTIONS makes typer write to a
# terminal.
_TERMINAL = {"COLUMNS", "LINES", "TERMINAL_WIDTH", "FORCE_COLOR", "NO_COLOR", "PY_COLORS"}
for _name in _TERMINAL | {"GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}:
    os.environ.pop(_name, None)

# Hundreds of processes import this package: each would compile it anew. Workers start from here.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

SLOW = {
    ".": "cuda fuzz kernels systems visit test_documented_commands"
    " test_docs_outputs test_endings test_install test_kills test_processes"
    " test_traps",
    "bench": "test_case test_gpu_case test_launches test_telemetry test_timed_kernels",
    "cache": "test_blocks_machine test_machine test_sharing_machine",
    "cli": "test_bench test_budget test_compare test_doctor test_explain test_foreign_code"
    " test_golden test_kernels test_launches test_op test_profile test_progress"
    " test_record test_replay test_results test_shell test_sweeps test_without_torch",
    "replay/clock": "test_points",
    "bench/compare": "test_ab test_comparison test_verdict",
    "engines": "logs/test_recovery logs/test_explain oracles test_own test_rules",
    "profile": ".",
    "bench/transfer": "test_bench_transfer test_side",
    "ops": "peers test_codec test_entry_content test_tolerance"
    " test_streaming test_variants test_originals",
    "replay/plan": "test_plan",
    "core": "test_policies test_policies_libcachesim",
    "diagnose/probe": "test_probe",
    "record": "test_folder test_proxy test_tokenize",
    "replay": "test_machine test_mrc test_rules test_rules_machine test_scheduler test_tiers",
    "runs": "test_statistics test_store",
    "bench/serve": "test_decode_graphs test_executor test_loop test_placing"
    " test_prefix_reuse test_verifier",
    "budget": "test_advice test_fit test_launch test_shell",
    "bench/tiers": "test_bench_tiers test_faults test_library",
    "traces": "test_summary test_real",
    "view": "page test_answer_first test_odd_profiles",
}
"""Files and folders that are slow, by room; a single test is marked where it stands."""

_TESTS = Path(__file__).parent
_SLOW = {_TESTS / room / name for room, names in SLOW.items() for name in names.split()}


THINNED = {
    "bench/test_case.py::test_an_insert_that_does_nothing_is_found": 1,
    "bench/test_case.py::test_ctrl_c_in_the_middle_of_a_step_leaves_a_whole_record": 1,
    "bench/test_case.py::test_ctrl_c_keeps_what_was_measured": 2,
    "bench/test_case.py::test_v32_moves_real_bytes_and_they_are_right": 1,
    "bench/test_launches.py::test_a_process_that_leaves_no_record_says_why": 3,
    "bench/test_launches.py::test_of_two_launches_one_that_crashes_leaves_the_other_to_its_end": 0,
    "bench/test_launches.py::test_two_launches_of_the_same_do_every_step_in_turns": 0,
    "cache/test_sharing_machine.py::test_no_block_is_lost_in_many_operations": 1,
    "budget/test_advice.py::test_the_first_option_is_the_best_of_all_combinations": 5,
    "cli/test_budget.py::test_what_does_not_fit_ends_with_1_however_it_was_asked": 3,
    "cli/test_compare.py::"
    "test_ctrl_c_in_a_duel_of_revisions_keeps_what_there_is_and_leaves_no_worktree": 1,
    "cli/test_launches.py::test_a_killed_run_keeps_the_launches_before_and_leaves_nothing_else": 0,
    "cli/test_launches.py::test_ctrl_c_in_a_launch_saves_what_was_measured": 0,
    "cli/test_progress.py::test_reading_a_trace_says_how_far_it_is": 3,
    "cli/test_record.py::test_whatever_ends_it_no_finished_request_is_lost": 1,
    "cli/test_shell.py::test_a_stream_that_is_not_utf_8_loses_glyphs_and_not_the_answer": 1,
    "config/test_load.py::test_a_key_with_one_letter_missing_is_recognised": 20,
    "diagnose/conform/test_check.py::test_a_planted_fault_is_found_and_shrunk": 2,
    "cuda/test_inspection.py::"
    "test_what_comes_before_the_wait_for_the_kernel_in_front_is_counted": 1,
    "diagnose/dumps/test_records.py::test_every_record_is_told_from_four_pages": 8,
    "diagnose/dumps/test_records.py::test_other_bytes_are_taken_for_no_record": 5,
    "engines/defaults/test_planned.py::"
    "test_the_default_answer_is_the_planners_with_its_own_defaults": 12,
    "engines/logs/test_recovery.py::test_without_arguments_the_truth_is_among_the_candidates": 3,
    "engines/sizing/test_properties.py::"
    "test_a_request_never_takes_less_for_more_tokens_or_more_in_flight": 5,
    "engines/sizing/test_properties.py::test_more_memory_never_holds_less": 5,
    "engines/test_rules.py::test_the_conversation_trace_hits_what_the_engines_own_code_hits": 3,
    "fuzz/test_fuzz.py::test_no_file_gives_a_traceback_or_a_command_to_the_terminal": 21,
    "kernels/test_cluster.py::test_a_cluster_gives_the_bytes_of_scratch_in_every_order": 2,
    "kernels/test_format.py::test_all_codes_under_all_scales_decode_as_on_the_cpu_backend": 2,
    "kernels/test_format.py::test_every_finite_bf16_encodes_as_on_the_cpu_backend": 5,
    "kernels/test_shim.py::test_sanitizers_name_the_line_of_a_defect": 1,
    "kernels/test_state_chunk.py::"
    "test_tokens_chunks_and_one_prompt_give_equal_pages_and_states": 2,
    "bench/test_telemetry.py::test_a_throttled_gpu_is_seen_while_the_run_goes_on": 3,
    "bench/transfer/test_bench_transfer.py::"
    "test_a_prefill_side_that_dies_or_stops_is_a_sentence_in_time": 1,
    "bench/transfer/test_side.py::test_bytes_of_others_are_found_by_their_digests": 2,
    "replay/test_mrc.py::test_the_conversation_trace_resumes_as_published": 2,
    "ops/peers/test_check.py::test_a_wrong_operation_is_named_with_what_is_wrong": 8,
    "ops/test_operations.py::test_the_cpu_backend_equals_the_reference": 110,
    "ops/test_codec.py::test_encoding_equals_the_reference": 7,
    "ops/test_tolerance.py::test_a_neighbouring_code_is_right_and_the_next_but_one_is_wrong": 3,
    "ops/test_streaming.py::test_chunks_and_tokens_in_turns_give_equal_pages_and_states": 3,
    "replay/plan/test_plan.py::test_a_safer_answer_is_what_a_search_with_its_limits_finds": 1,
    "replay/plan/test_plan.py::test_brute_force_finds_nothing_cheaper": 1,
    "replay/plan/test_plan.py::test_no_request_is_faster_than_the_bounds": 1,
    "core/test_policies.py::test_runs_are_judged_as_their_blocks_would_be": 3,
    "core/test_policies_libcachesim.py::"
    "test_blocks_of_the_conversation_trace_hit_as_in_libcachesim": 1,
    "core/test_policies_libcachesim.py::test_single_blocks_hit_as_in_libcachesim": 3,
    "record/test_published.py::test_a_replay_hits_what_the_manager_did": 3,
    "record/test_published.py::test_a_replay_evicts_what_was_announced": 3,
    "bench/serve/test_decode_graphs.py::test_a_graph_that_does_not_follow_the_step_is_found": 1,
    "bench/serve/test_decode_graphs.py::test_graphs_leave_the_bytes_that_single_launches_leave": 1,
    "bench/serve/test_decode_graphs.py::test_what_graphs_gather_equals_the_reference": 1,
    "bench/serve/test_verifier.py::test_a_right_cache_read_in_place_passes_every_check": 1,
    "bench/serve/test_verifier.py::test_anything_wrong_that_is_read_in_place_is_found": 3,
    "bench/serve/test_placing.py::test_placed_contexts_are_decoded_and_pass_every_check": 1,
    "bench/serve/test_prefix_reuse.py::test_a_prefix_that_is_not_brought_back_is_found": 1,
    "bench/serve/test_prefix_reuse.py::"
    "test_what_is_gathered_has_the_bits_of_a_run_without_reuse": 1,
    "bench/serve/test_verifier.py::test_a_right_cache_passes_every_check": 2,
    "bench/serve/test_verifier.py::test_a_wrong_cache_is_found_out": 8,
    "budget/test_launch.py::test_an_odd_command_is_answered_or_a_sentence_in_bounded_time": 8,
    "systems/test_command.py::test_a_planted_defect_is_found_and_fails_the_run": 3,
    "test_docs_outputs.py::test_a_replay_of_the_pages_runs": 5,
    "test_endings.py::test_the_program_ends_as_by_ctrl_c": 1,
    "bench/transfer/test_rows.py::test_rows_are_the_same_in_another_cache": 2,
    "view/page/test_browser.py::test_a_page_fits_every_window_and_nothing_on_it_is_cut": 3,
    "view/test_odd_profiles.py::test_odd_values_anywhere_in_a_trace_are_left_out_or_refused": 5,
    "visit/test_rehearsal.py::"
    "test_a_sanitizer_is_not_believed_that_misses_a_planted_defect_or_whose_program_ends_early": 1,
    "visit/test_rehearsal.py::"
    "test_a_visit_that_is_killed_keeps_every_row_but_the_one_under_way": 0,
    "visit/test_rehearsal.py::"
    "test_without_ncu_its_questions_say_so_and_the_rehearsal_skips_them": 0,
}
"""How many variants of the dearest properties are tried, evenly among all; 0 where another test
of a check has most of the property. ``make full`` tries every one."""


@pytest.fixture
def fresh_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge faults on a day of 2026: their rows are in doubt after a day that each names."""
    from dsv4kv.diagnose import faults as table

    given, day = table.judge, date(2026, 11, 26)
    monkeypatch.setattr(table, "judge", lambda subjects, faults, _: given(subjects, faults, day))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not FULL:
        _thin(config, items)
    for item in items:
        if not _SLOW.isdisjoint((item.path.with_suffix(""), *item.path.parents)):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # tests make many objects: the default takes 5 % of the suite
    gc.enable()


def _thin(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave variants out, whatever else is: the same ones in every run."""
    found = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        found[item.nodeid.partition("[")[0].removeprefix("tests/")].append(item)
    left_out = [
        item
        for test, count in THINNED.items()
        for place, item in enumerate(found[test])
        if len(found[test]) > count and place * count % len(found[test]) >= count
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is slow is not even imported where nobody wants it."""
    unwanted = config.option.markexpr == "not slow" and collection_path.with_suffix("") in _SLOW
    return True if unwanted else None


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What ``main()`` sets is as it was, afterwards; a background job ignores Ctrl-C before."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    before = [signal.signal(number, signal.SIG_DFL) for number in ENDINGS]
    yield
    for number, handler in zip(ENDINGS, before, strict=True):
        signal.signal(number, handler)
