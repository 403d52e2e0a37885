"""``bench transfer``: its first sentence claims no more than the intervals know."""

from dataclasses import replace

import pytest

from dsv4kv.bench.transfer.receiver import Moved
from dsv4kv.bench.transfer.run import Costs, Outcome
from dsv4kv.runs.statistics import Estimate
from dsv4kv.view.transfer import answer

SURE = Outcome(
    families={"csa": Moved(bytes=2**20, pieces=40, descriptors=10)},
    gbps=Estimate(3.0, 0.1),
    unmerged_gbps=Estimate(2.0, 0.1),
    memcpy_gbps=None,
    costs=Costs(Estimate(1.0, 0.1), Estimate(100.0, 5.0), Estimate(0.05, 0.001)),
    at_end_ns=1,
    by_layer_ns=1,
    pages=1,
    engines={},
)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({}, "Bytes limit: 52 µs for 1.00 MiB, 1.0 µs for 10 descriptors."),
        ({}, "Merged, 40 pieces are 10: 1.50 times as fast."),
        ({"gbps": Estimate(2.01, 0.05)}, "as fast as before, within 6 %."),
        ({"gbps": Estimate(2.1, 1.5)}, "Merged, 40 pieces are 10: whether that is faster is not"),
        ({"gbps": Estimate(2.1, None)}, "whether that is faster is not known"),
        (
            {"costs": replace(SURE.costs, descriptor_ns=Estimate(0.0, 3.0, (6e3, 1.0)))},
            "Bytes limit: 52 µs",
        ),
        (
            {"costs": replace(SURE.costs, descriptor_ns=Estimate(0.0, 6e3, (1.0, 6e3)))},
            "What limits is not known: 52 µs for 1.00 MiB, 0 ns for",
        ),
    ],
)
def test_the_answer_claims_what_is_known(changed: dict[str, object], sentence: str) -> None:
    assert sentence in answer(replace(SURE, **changed))  # type: ignore[arg-type]
