"""Operations that are nearly right, one defect each, for the check to find.

Called by position, as backends from elsewhere are.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4kv.model.presets import load_model
from dsv4kv.ops import cpu as right
from dsv4kv.ops.storage import Compressor, PageStore, make_rope

cpu: Any = right  # called by position, some of them with whatever comes

CALLED_WRONG: dict[str, Callable[..., None]] = {
    "forgets_the_indexer": lambda *given: cpu.step_write(*given[:-1], given[-1][:1]),
    "copies_backwards": lambda store, sources, targets: cpu.page_copy(store, targets, sources),
    "never_rotates": lambda *given: cpu.indexer_insert(*given[:-1], False),
    "turns_as_the_group_before": lambda compressor, values, positions, *others: (
        cpu.norm_rope_insert(compressor, values, positions - compressor.ratio, *others)
    ),
    "forgets_the_state": lambda compressor, state, *others: cpu.compress_chunk(
        compressor, state.clone(), *others
    ),
    "takes_the_last_of_equals": lambda scores, *others: cpu.select_topk(
        scores + torch.arange(scores.shape[1]) * 1e-4, *others
    ),
    "attends_without_sinks": lambda *given: cpu.attend(
        *given[:6], torch.full_like(given[6], -torch.inf), *given[7:]
    ),
}
"""Right operations, called with other arguments."""


def next_row(*given: Any) -> None:
    *pages, indices, lengths, out = given
    within = (indices >= 0) & (indices < lengths[:, None] - 1)
    cpu.gather_topk(*pages, torch.where(within, indices + 1, indices), lengths, out)


def leaves_rests(*given: Any) -> None:
    *_, lengths, out = given
    before = out.clone()
    cpu.gather_all(*given)
    for b, length in enumerate(lengths.tolist()):
        out[b, length:] = before[b, length:]


def returns_its_output(*given: Any) -> Tensor:
    mine = torch.empty_like(given[-1])
    cpu.gather_all(*given[:-1], mine)
    return mine


class Unreadable(BaseException):
    def __str__(self) -> str:
        raise self


def ends_the_program(*given: Any) -> None:
    raise SystemExit(0)


def raises_what_cannot_be_read(*given: Any) -> None:
    raise Unreadable


def empties_its_output(*given: Any) -> None:
    given[-1].resize_(0)


def changes_lengths(*given: Any) -> None:
    cpu.gather_all(*given)
    given[-2].add_(1)


def writes_behind_its_output(*given: Any) -> None:
    cpu.gather_all(*given)
    out = given[-1]
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()


def raises(*_: Any) -> None:
    raise RuntimeError("invalid device function\nand a long trace")


def newest_first(*given: Any) -> None:
    cpu.gather_window(*given)
    given[-1].copy_(given[-1].flip(1))


def writes_for_minus_one(store: PageStore, values: Tensor, entries: Tensor) -> None:
    free = min(set(range(store.num_entries)) - set(entries.tolist()))
    cpu.entry_insert(store, values, entries.where(entries != -1, free))


def writes_padding(store: PageStore, *others: Any) -> None:
    cpu.entry_insert(store, *others)
    store.pages[1, -1] = 1


def leaves_the_pad_byte(store: PageStore, values: Tensor, entries: Tensor) -> None:
    cpu.entry_insert(store, values, entries)
    store.scale_rows()[store.scale_index(entries[:1]), 7] = 9


def first_of_a_row_wins(ring: PageStore, *tokens: Any) -> None:
    for t in reversed(range(len(tokens[0]))):
        cpu.window_insert(ring, *(each[t : t + 1] for each in tokens))


def appends_without_bias(*given: Any) -> None:
    compressor, state, kv, score, slots, positions = given
    bias = compressor.ape[positions % compressor.ratio]
    cpu.state_append(compressor, state, kv, score - bias, slots, positions)


def forms_angles_in_float64(compressor: Compressor, *others: Any) -> None:
    """As right as can be in the first groups, and far from the engines' float32 in the last."""
    rope = make_rope(load_model("v4-flash"), compressor.ratio, 0, "float64")
    cpu.flush(replace(compressor, rope=rope), *others)


def folds_no_constant(*given: Any) -> None:
    cpu.indexer_query(*given)
    given[-1].mul_(given[0].shape[1] ** 0.5 * 128**0.5 * 3)


def scores_what_is_not_seen(*given: Any) -> None:
    store, table, slots, lengths, *others = given
    cpu.index_scores(store, table, slots, lengths.where(lengths != 9, 10), *others)


def forgets_the_newest_block(*given: Any) -> None:
    scores, lengths, block_entries, out = given
    cpu.select_blocks(scores, lengths - (lengths > block_entries).int() * 8, block_entries, out)


def gives_logical_entries(*given: Any) -> None:
    cpu.select_topk(*given)
    given[-1].copy_(given[-2])


def counts_the_sink_in_lse(*given: Any) -> None:
    cpu.attend(*given)
    torch.logaddexp(given[-1], given[6].expand_as(given[-1]), out=given[-1])
