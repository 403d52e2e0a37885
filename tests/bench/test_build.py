"""From a configuration to a cache: what is refused, and what the loop is told."""

import pytest

from dsv4kv.bench.build import check_data_path, check_memory, plan_from
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import choose_formats, plan_cache
from dsv4kv.model.presets import load_model
from tests.bench.settings import BOOKS, tiny_config


def test_entries_that_no_operation_moves_have_no_data() -> None:
    config = load_model("v4-flash")
    formats = choose_formats(config, main="nvfp4")
    plan = plan_cache(config, max_context_tokens=256, num_slots=1, formats=formats)
    with pytest.raises(ConfigError, match=r"^v4-flash with nvfp4 .* set workload.data to none"):
        check_data_path(plan)


def test_a_cache_larger_than_memory_is_refused_before_it_is_built() -> None:
    config = tiny_config("workload.concurrency=1000")
    plan = plan_from(config)
    needed = plan.total_bytes + 2 * config.measure.memcpy_bytes + 32 * plan.num_blocks["model"]
    needed += 4 * 64 * (plan.max_context_tokens // 4 + plan.max_context_tokens // 128)  # angles
    check_memory(config, plan, needed)
    with pytest.raises(ConfigError, match=r"^this run needs \d+ MiB .* workload.data to none\.$"):
        check_memory(config, plan, needed - 1)


def test_without_data_only_the_books_must_fit_into_memory() -> None:
    config = tiny_config("workload.concurrency=1000", BOOKS)
    plan = plan_from(config)
    books = 1000 * 4 * 8 + 32 * plan.num_blocks["model"]
    check_memory(config, plan, books)
    with pytest.raises(ConfigError, match=r"lower cache\.max_context_tokens"):
        check_memory(config, plan, books - 1)
