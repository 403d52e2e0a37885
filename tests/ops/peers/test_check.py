"""The check before timing: what is right passes, and what is wrong is named."""

import pytest
import torch

from dsv4kv.model.plan import CachePlan
from dsv4kv.ops.check import check_backend
from dsv4kv.ops.registry import Foreign, combine, resolve_backend
from dsv4kv.ops.spec import OPERATIONS
from tests.ops.operations import CACHES
from tests.ops.peers import wrong

CPU = torch.device("cpu")
SHIPPED = CACHES["as shipped"]
CSA = "main pages of 32 fp8_ds_mla entries"
KEYS, RING = "indexer pages of 32 mxfp4 entries", "window pages of 128 fp8_ds_mla entries"


def check(name: str, plan: CachePlan = SHIPPED) -> list[str]:
    """Of a place, or of ``operation=defect``."""
    operation, equals, defect = name.partition("=")
    if equals:
        function = wrong.CALLED_WRONG.get(defect) or getattr(wrong, defect)
        resolved = combine(name, "cpu", Foreign({operation: function}, None), {})
    else:
        resolved = resolve_backend(name, "cpu")
    return check_backend(resolved, plan, CPU)


# Operation and defect, and what is said of the first pages it shows on.
WRONG = {
    "gather_topk=next_row": (CSA, "request 0, row 2, channel 0 is "),
    "gather_all=leaves_rests": (
        CSA,
        "request 0, row 9, channel 0 is nan, and the reference has 0.",
    ),
    "gather_all=returns_its_output": (CSA, "it left its output as it was: an operation writes "),
    "gather_all=changes_lengths": (CSA, "it changed its argument 'lengths'."),
    "gather_all=writes_behind_its_output": (CSA, "it wrote memory after its arguments."),
    "gather_all=raises": (
        CSA,
        "gather_all raised RuntimeError in wrong.py:88: invalid device function",
    ),
    "gather_all=ends_the_program": (CSA, "gather_all raised SystemExit in wrong.py:65: 0"),
    "gather_all=raises_what_cannot_be_read": (
        CSA,
        "raised Unreadable in wrong.py:69: its message cannot be read",
    ),
    "gather_all=empties_its_output": (CSA, "it made 'out' [0] of bfloat16, and [3, "),
    "gather_window=newest_first": (RING, "request 0, row 0, channel 0 is 0, and the reference "),
    "entry_insert=writes_for_minus_one": (CSA, " was written, and should not be."),
    "entry_insert=writes_padding": (CSA, "it wrote bytes of page 1 that are no entry's."),
    "entry_insert=leaves_the_pad_byte": (CSA, ": scale byte 7 is 0x09 instead of 0x00."),
    "window_insert=first_of_a_row_wins": (RING, "entry 198 (page 1, row 70) has "),
    "page_copy=copies_backwards": (CSA, "entry 0 (page 0, row 0) was not written."),
    "indexer_insert=never_rotates": (KEYS, " in channel "),
    "norm_rope_insert=turns_as_the_group_before": ("indexer latents", " in channel "),
    "state_append=appends_without_bias": ("main states of csa layers", "state [0, 1, 0, 0] is "),
    "flush=forms_angles_in_float64": ("main states of csa layers", " in channel "),
    "step_write=forgets_the_indexer": ("csa layers", "state [0, 0, "),
    "compress_chunk=forgets_the_state": ("main states of csa layers", "state [2, 0, "),
    "indexer_query=folds_no_constant": ("64 heads", "token 0, head 0: its weight is "),
    "index_scores=scores_what_is_not_seen": (KEYS, ", and the reference has -inf."),
    "select_blocks=forgets_the_newest_block": ("blocks of 8", "token 0, column "),
    "select_topk=takes_the_last_of_equals": ("scores of all entries", "token 2, column "),
    "select_topk=gives_logical_entries": (
        "scores of all entries",
        "'entries' of token 0, column ",
    ),
    "attend=attends_without_sinks": ("swa layers' " + RING, "token 0, head 0, channel "),
    "attend=counts_the_sink_in_lse": ("swa layers' " + RING, "'lse' of token 0, head 0 is "),
}

OF_V41 = ("norm_rope_insert", "select_blocks")


@pytest.mark.parametrize("defect", WRONG)
def test_a_wrong_operation_is_named_with_what_is_wrong(defect: str) -> None:
    operation = defect.partition("=")[0]
    found = check(defect, CACHES["V4.1"] if operation in OF_V41 else SHIPPED)
    subject, problem = WRONG[defect]
    assert found[0].startswith(f"{operation} of {defect} on {subject}: ")
    assert problem in found[0]


def test_every_operation_has_a_defect_that_is_found() -> None:
    assert {defect.partition("=")[0] for defect in WRONG} == set(OPERATIONS)
