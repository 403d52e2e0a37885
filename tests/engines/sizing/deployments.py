"""Deployments for tests."""

from functools import cache

from hypothesis import strategies as st

from dsv4kv.engines.contract import Deployment
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats

MILLION = 2**20
GIB = 2**30


def deploy(
    model: str = "v4-flash",
    context: int = MILLION,
    flight: int = 8192,
    drafts: int = 0,
    indexer: str = "fp8",
    main: str = "fp8_ds_mla",
    concurrency: int | None = None,
    state_bytes: int = 4,
    window_ratio: float | None = None,
    block_tokens: int | None = None,
    draft_tokens: int = 0,
    layers: tuple[int, ...] | None = None,
    online_state: bool = False,
) -> Deployment:
    """A deployment that differs from the usual one where it is told to."""
    config = preset(model)
    return Deployment(
        model=config,
        formats=choose_formats(config, main, main, indexer),
        max_context_tokens=context,
        in_flight_tokens=flight,
        draft_layers=drafts,
        concurrency=concurrency,
        state_bytes=state_bytes,
        window_ratio=window_ratio,
        block_tokens=block_tokens,
        draft_tokens=draft_tokens,
        layers=layers,
        online_state=online_state,
    )


@cache
def preset(name: str) -> DSV4Config:
    """A shipped model, read once."""
    return load_model(name)


def variant(ratios: tuple[int, ...]) -> DSV4Config:
    """A model of these layers, one after the other, without drafts."""
    fields = preset("v4-flash").model_dump()
    fields |= {"name": "variant", "num_layers": len(ratios), "compress_ratios": ratios}
    return DSV4Config(**fields)


def deployments() -> st.SearchStrategy[Deployment]:
    """Any of the published models, with any load."""
    return st.builds(
        deploy,
        model=st.sampled_from(["v4-flash", "v4-pro"]),
        context=st.integers(1024, MILLION),
        flight=st.integers(1, 40_000),
        drafts=st.sampled_from([0, 1, 3]),
        indexer=st.sampled_from(["fp8", "mxfp4"]),
    )
