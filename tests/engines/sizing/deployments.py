"""Deployments for tests."""

from functools import cache
from typing import Any

from hypothesis import strategies as st

from dsv4kv.engines.contract import Deployment
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import choose_formats
from dsv4kv.model.presets import load_model

MILLION = 2**20
GIB = 2**30


_NAMES = {"context": "max_context_tokens", "flight": "in_flight_tokens", "drafts": "draft_layers"}


def deploy(
    model: str = "v4-flash", *, main: str = "fp8_ds_mla", indexer: str = "fp8", **changes: Any
) -> Deployment:
    """A deployment that differs from the usual one where it is told to."""
    config = preset(model)
    usual = {"max_context_tokens": MILLION, "in_flight_tokens": 8192}
    fields = usual | {_NAMES.get(name, name): value for name, value in changes.items()}
    return Deployment(config, choose_formats(config, main, main, indexer), **fields)


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
