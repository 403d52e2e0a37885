"""From a log's numbers back to what they came from."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import engine_family, find_engine
from dsv4kv.engines.recover import Recovery, find_recoveries
from dsv4kv.engines.vllm.sizes import VllmEngine
from tests.engines.logs.startup import parsed
from tests.engines.sizing.deployments import GIB, deploy, deployments
from tests.examples import examples

# An example tries every version, model and format.
FEW = examples(25)
_METHOD = {0: "None", 1: "mtp", 3: "dspark"}


def recovered(lines: list[str] | tuple[str, ...]) -> list[Recovery]:
    return find_recoveries(parsed(lines))


def told(name: str, deployment: Deployment, memory: int) -> list[str]:
    """The log of an engine with the arguments that engines echo."""
    echoed = (
        f"{name.partition(':')[0]} version {name.partition(':')[2]}.0 "
        f"model='/m/{deployment.model.name}', "
        f"max_num_batched_tokens={deployment.in_flight_tokens}, async_scheduling=False, "
        f"method='{_METHOD[deployment.draft_layers]}', "
        f"use_fp4_indexer_cache={deployment.formats.indexer.name == 'mxfp4'}"
    )
    return [echoed, *find_engine(name).capacity(deployment, memory).log_lines]


@pytest.mark.parametrize("name", engine_family("vllm"))
@FEW
@given(deployments(), st.integers(2 * GIB, 300 * GIB))
def test_what_made_a_log_of_vllm_is_recovered_from_it(
    name: str, deployment: Deployment, memory: int
) -> None:
    engine = find_engine(name)
    assert isinstance(engine, VllmEngine)
    capacity = engine.capacity(deployment, memory)
    assume(capacity.printed_tokens)
    found = recovered(told(name, deployment, memory))[0]
    assert found.exact
    assert found.engine.name == name
    assert found.deployment.model == deployment.model
    assert found.deployment.formats == deployment.formats
    if deployment.draft_layers:  # without drafts engines name no method
        assert found.deployment.draft_layers == deployment.draft_layers
    assert printed(found) == capacity.printed_tokens
    low, high = found.flight_range
    if deployment.in_flight_tokens < deployment.max_context_tokens - 7:
        assert found.deployment.in_flight_tokens == deployment.in_flight_tokens
        assert low <= deployment.in_flight_tokens <= high
        assert found.units == capacity.units
    else:
        assert high == deployment.max_context_tokens


@pytest.mark.parametrize("name", engine_family("vllm"))
@FEW
@given(deployments(), st.integers(2 * GIB, 300 * GIB))
def test_without_arguments_the_truth_is_among_the_candidates(
    name: str, deployment: Deployment, memory: int
) -> None:
    capacity = find_engine(name).capacity(deployment, memory)
    assume(capacity.printed_tokens)
    found = [
        other
        for other in recovered(list(capacity.log_lines))
        if other.engine.name == name
        and other.deployment.model == deployment.model
        and other.deployment.formats == deployment.formats
        and other.deployment.draft_layers == deployment.draft_layers
        and other.units == capacity.units
    ]
    assert found
    assert any(
        low <= min(deployment.in_flight_tokens, high)
        for low, high in (other.flight_range for other in found)
    )


@pytest.mark.parametrize("name", engine_family("vllm"))
@FEW
@given(deployments(), st.floats(0.3, 0.999))
def test_what_made_a_refusal_is_recovered_from_it(
    name: str, deployment: Deployment, share: float
) -> None:
    engine = find_engine(name)
    assert isinstance(engine, VllmEngine)
    needed = engine.needed_bytes(deployment, deployment.max_context_tokens)
    assume(needed > GIB)
    memory = int(needed * share)
    found = recovered(told(name, deployment, memory))[0]
    assert found.exact
    assert found.engine.name == name
    low, high = found.flight_range
    assert low <= min(deployment.in_flight_tokens, high)


@pytest.mark.parametrize("name", engine_family("sglang"))
@FEW
@given(
    st.sampled_from(["v4-flash", "v4-pro"]),
    st.sampled_from([0, 1]),
    st.integers(1, 400),
    st.integers(40 * GIB, 180 * GIB),
    st.sampled_from([8192, 16_384]),
)
def test_what_made_a_log_of_sglang_is_recovered_from_it(
    name: str, model: str, drafts: int, requests: int, memory: int, chunk: int
) -> None:
    """Its chunk is not printed."""
    deployment = deploy(
        model, drafts=drafts, concurrency=requests, window_ratio=0.1, flight=2 * chunk
    )
    capacity = find_engine(name).capacity(deployment, memory)
    assume(capacity.printed_tokens)
    echoed = (
        f"sglang version {name.partition(':')[2]} model_path='/m/{model}', "
        f"max_running_requests={requests}, swa_full_tokens_ratio=0.1, "
        f"speculative_algorithm='{'EAGLE' if drafts else None}'"
    )
    found = recovered([echoed, *capacity.log_lines])[0]
    assert found.exact
    assert found.engine.name == name
    assert found.deployment.model == deployment.model
    assert found.deployment.draft_layers == drafts
    assert found.units == capacity.units == printed(found)


def printed(found: Recovery) -> int | None:
    return found.engine.capacity(found.deployment, found.available_bytes).printed_tokens
