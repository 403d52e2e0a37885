"""Block ids of one record of a trace, counted against its prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from dsv4kv.workload.traces.fields import read_block_ids
from dsv4kv.workload.traces.lines import Defect


def read_counted_ids(
    record: Mapping[str, Any], name: str, input_tokens: int, block_tokens: int
) -> Sequence[int]:
    """Return one id for every block; the last may be partial, or left out if it is.

    Raises:
        Defect: No list of whole numbers, or more or fewer ids than blocks.
    """
    ids = read_block_ids(record, name)
    full, partial = divmod(input_tokens, block_tokens)
    if len(ids) not in {full, full + bool(partial)}:
        raise Defect(
            f"{name} has {len(ids):,} ids, expected {full + bool(partial):,}: one per "
            f"{block_tokens} of {input_tokens:,} tokens, the last may be partial or left out"
        )
    return ids
