"""Every option gains what it says, and where nothing fits the cheapest that helps leads."""

from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.engines.flags import find_flag
from dsv4kv.sizing.advice import Option, advise
from dsv4kv.sizing.fit import fits, max_concurrency, max_context, tightest_free_bytes
from dsv4kv.sizing.inputs import READERS
from dsv4kv.sizing.scenario import Scenario, fix_layout, resolve
from tests.examples import examples
from tests.sizing.questions import GIB, ask, scenario, scenarios


def changes(options: list[Option]) -> list[str]:
    return [option.change for option in options]


def typed(found: Scenario, change: str) -> Scenario:
    """The deployment after options are typed as an option of the advice says."""
    words = change.replace("=", " ").split()
    family = found.engine.name.partition(":")[0]
    texts: dict[str, str] = {}
    for spelling, value in zip(words[::2], words[1::2], strict=True):
        flag = find_flag(family, spelling)
        means = flag.means if flag else None
        texts |= means.of(value) if means else {spelling.removeprefix("--"): value}
    kept = {
        name: str(value)
        for name in READERS
        if (value := getattr(fix_layout(found), name.replace("-", "_"))) is not None
    }
    spread = {"gpus", "tp", "dp", "ep"} & set(texts)
    if spread:
        kept = {
            name: text for name, text in kept.items() if name not in {"gpus", "tp", "dp", "ep"}
        }
    return resolve(ask(**{k.replace("-", "_"): v for k, v in (kept | texts).items()}))[0]


@examples(50)
@given(scenarios(), st.sampled_from([4096, 2**17, 2**20]), st.integers(1, 2000))
def test_every_option_gains_what_it_says(found: Scenario, tokens: int, load: int) -> None:
    before = tightest_free_bytes(found, tokens, load)
    for option in advise(found, tokens, load):
        if option.change.startswith(("without", "--concurrency", "--context")):
            continue
        after = typed(found, option.change)
        assert tightest_free_bytes(after, tokens, load) - before == option.freed_bytes
        assert option.freed_bytes > 0 or option.concurrency > max_concurrency(found, tokens)
        assert fits(after, tokens, load) == option.fits
        assert max_concurrency(after, tokens) == option.concurrency


@examples(50)
@given(scenarios(), st.sampled_from([4096, 2**17, 2**20]), st.integers(1, 5000))
def test_what_does_not_fit_has_its_helpful_options_first(
    found: Scenario, tokens: int, load: int
) -> None:
    lucky = [option.fits for option in advise(found, tokens, load)]
    assert lucky == sorted(lucky, reverse=True)


def test_the_cheapest_change_that_makes_it_fit_leads() -> None:
    """A format before less spare memory, that before more GPUs, those before serving less."""
    found = scenario(gpus="8", tp="1", indexer_format="fp8", in_flight_tokens="2K")
    load = max_concurrency(found, 2**20) + 8
    helpful = changes([option for option in advise(found, 2**20, load) if option.fits])
    assert helpful == [
        "--indexer-format mxfp4",
        "--memory-fraction 0.95",
        "--gpus 16 --tp 1 --dp 16",
        f"--concurrency {load - 8}",
        f"--context {max_context(found, load)}",
    ]


def test_serving_less_comes_last_of_what_helps() -> None:
    options = advise(scenario(gpus="8"), 2**17, 3000)
    helpful = changes([option for option in options if option.fits])
    assert helpful == ["--gpus 16 --tp 1 --dp 16", "--concurrency 225", "--context 5891"]


def test_weights_that_do_not_fit_need_more_gpus() -> None:
    options = advise(scenario(gpus="1"), 2**20, 1)
    assert (options[0].change, options[0].reason) == (
        "--gpus 2 --tp 2 --dp 1",
        "more GPUs, as TP2",
    )


def test_what_fits_is_told_its_largest_gain_first() -> None:
    options = advise(scenario(gpus="8"), 2**20, 1)
    gains = [(option.concurrency, option.freed_bytes) for option in options]
    assert gains == sorted(gains, reverse=True)
    assert all(option.fits for option in options)


def test_replicas_instead_of_copies_are_offered() -> None:
    best = advise(scenario(gpus="8"), 2**20, 28)[0]
    assert (best.change, best.concurrency) == ("--tp 1 --dp 8", 216)


def test_everything_that_could_be_smaller_is_offered() -> None:
    wasteful = scenario(
        hbm="200GiB",
        gpus="8",
        main_format="bf16",
        window_format="bf16",
        indexer_format="bf16",
        block_tokens="512",
        draft_layers="1",
        draft_tokens="2",
    )
    assert set(changes(advise(wasteful, 100_100, 80))) == {
        "--step-tokens 2048",
        "--tp 1 --dp 8",
        "without --block-tokens",
        "without drafts",
        "--indexer-format mxfp4",
        "--main-format fp8_ds_mla",
        "--window-format fp8_ds_mla",
        "--memory-fraction 0.95",
    }


def test_an_engine_is_advised_in_its_own_flags() -> None:
    told = changes(advise(scenario(gpus="8", engine="vllm:0.33"), 2**20, 26))
    assert {"--max-num-batched-tokens 2048", "--gpu-memory-utilization 0.95"} < set(told)


def test_a_limit_of_requests_that_binds_is_advised_to_be_raised() -> None:
    found = scenario(gpus="8", tp="1", engine="sglang:0.5.23")
    raised = advise(found, 131_072, 256)[0]
    assert (raised.change, max_concurrency(found, 131_072)) == ("--max-running-requests 512", 256)
    assert raised.concurrency == 512


def test_what_an_engine_does_not_have_is_not_offered() -> None:
    """Drafts need the ring: the online state is refused, so it is no advice."""
    assert "--state online" in changes(advise(scenario(gpus="8"), 4096, 1))
    assert "--state online" not in changes(advise(scenario(gpus="8", draft_tokens="1"), 4096, 1))


def test_what_already_is_is_not_offered() -> None:
    frugal = scenario(gpus="8", tp="1", in_flight_tokens="2K", state="online",
                      memory_fraction="0.95")  # fmt: skip
    assert advise(frugal, 4096, 1) == []
    assert tightest_free_bytes(frugal, 4096, 1) > GIB


def test_the_same_gpus_are_not_told_as_more() -> None:
    options = advise(scenario(gpus="8"), 2**17, 1000)
    assert options[0].change == "--tp 1 --dp 8"
    assert not any(option.change.startswith("--gpus 8 ") for option in options)


def test_fewer_requests_at_once_are_advised_where_their_windows_leave_no_room() -> None:
    """SGLang 0.5.23 does not start: the windows of 256 requests of Pro take 25.6 GiB."""
    found = scenario(engine="sglang:0.5.23", model="v4-pro", gpus="8")
    fewer = next(o for o in advise(found, 4_608, 1) if "max-running-requests" in o.change)
    assert (fewer.change, fewer.fits) == ("--max-running-requests 128", True)
