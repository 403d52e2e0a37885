"""Names of prefixes, and what may be found under them."""

import numpy as np

from dsv4kv.bench.tiers.library import Prefix, namespace_of
from dsv4kv.model.plan import CachePlan, choose_formats, plan_cache
from dsv4kv.model.presets import load_model

FLASH = load_model("v4-flash")


def plan(**changes: object) -> CachePlan:
    return plan_cache(FLASH, **({"max_context_tokens": 512, "num_slots": 1} | changes))  # type: ignore[arg-type]


def test_keys_are_sglangs_page_hashes() -> None:
    """Recorded from SGLang 0.5.23: tokens 0 … 255, then 256 … 511 after them."""
    assert Prefix("", np.arange(600), 256).keys == [
        "8808405eec6fbe306fe3369f88daed79dd5613ddbb5e801f632b01d6218c5f08",
        "705440bca5981da70aa2be86254ecd2a1d66e6b280edf72ba0c3b17074bb9061",
    ]


def test_other_models_weights_formats_and_layouts_have_other_names() -> None:
    base = plan()
    others = [
        plan(block_tokens=256),
        plan(layers=range(42)),
        plan(draft_tokens=1),
        plan(hadamard=False),
        plan(state="online"),
        plan(formats=choose_formats(FLASH, indexer="fp8")),
        plan_cache(load_model("v4-pro"), max_context_tokens=512, num_slots=1),
    ]
    names = [namespace_of(each, "1") for each in [base, *others]]
    names.append(namespace_of(base, "2"))
    assert len(set(names)) == len(names)
    same = plan(max_context_tokens=4096, num_slots=3, sharing="type")
    assert namespace_of(same, "1") == namespace_of(base, "1")
