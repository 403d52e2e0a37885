"""Names of prefixes, and what may be found under them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.tiers.library import Manifest, Prefix, namespace_of, resume_points
from dsv4kv.model.plan import CachePlan, families_of, plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats

FLASH = load_model("v4-flash")


def plan(**changes: object) -> CachePlan:
    return plan_cache(FLASH, **({"max_context_tokens": 512, "num_slots": 1} | changes))  # type: ignore[arg-type]


def prefix(tokens: int, block_tokens: int = 256) -> Prefix:
    return Prefix(namespace_of(plan(), "1"), np.arange(tokens), block_tokens)


def test_keys_are_sglangs_page_hashes() -> None:
    """Recorded from SGLang 0.5.23: tokens 0 … 255, then 256 … 511 after them."""
    assert prefix(600).keys == [
        "8808405eec6fbe306fe3369f88daed79dd5613ddbb5e801f632b01d6218c5f08",
        "705440bca5981da70aa2be86254ecd2a1d66e6b280edf72ba0c3b17074bb9061",
    ]


def test_a_page_that_is_filled_in_part_has_a_name_of_its_own() -> None:
    family = next(f for f in families_of(plan(block_tokens=256)) if f.name == "csa")
    whole, part, other = (prefix(600).names(family, n) for n in (512, 516, 520))
    assert part[:2] == whole == other[:2]
    assert len({*part, *other}) == 4


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


@given(tokens=st.integers(0, 700), damage=st.none() | st.integers(0, 10_000))
def test_a_manifest_is_read_as_it_was_written_or_not_at_all(
    tokens: int, damage: int | None
) -> None:
    families = families_of(plan(block_tokens=256))
    digests = {f.name: [bytes([i] * 16) for i in range(f.objects(tokens))] for f in families}
    data = Manifest(tokens, digests).dump().copy()
    assert len(data) == Manifest.size(families, tokens)
    if damage is not None:
        data[damage % len(data)] ^= 0x40
    found = Manifest.load(data, families, tokens)
    assert found == (Manifest(tokens, digests) if damage is None else None)
    assert Manifest.load(data, families, tokens + 1) is None


@given(data=st.data(), count=st.integers(0, 12))
def test_resume_points_are_where_every_family_says_so(data: st.DataObject, count: int) -> None:
    def draw() -> list[bool]:
        return data.draw(st.lists(st.booleans(), min_size=count, max_size=count))

    pages, tails = [draw() for _ in range(3)], [draw() for _ in range(2)]
    as_arrays = [[np.array(each, dtype=np.bool_) for each in some] for some in (pages, tails)]
    expected = [
        n
        for n in range(1, count + 1)
        if all(all(each[:n]) for each in pages) and all(each[n - 1] for each in tails)
    ]
    assert resume_points(as_arrays[0], as_arrays[1], count).tolist() == expected
