"""Operations that are nearly right, one defect each, for the check to find."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4kv.model.presets import load_model
from dsv4kv.ops import cpu
from dsv4kv.ops.compressor import Compressor, make_rope
from dsv4kv.ops.storage import PageStore, Parts


def forgets_the_indexer(
    ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor, parts: Parts
) -> None:
    cpu.step_write(ring, values, slots, positions, parts[:1])


def next_row(
    store: PageStore, table: Tensor, slots: Tensor, indices: Tensor, lengths: Tensor, out: Tensor
) -> None:
    within = (indices >= 0) & (indices < lengths[:, None] - 1)
    cpu.gather_topk(store, table, slots, torch.where(within, indices + 1, indices), lengths, out)


def slots_in_order(
    store: PageStore, table: Tensor, slots: Tensor, indices: Tensor, lengths: Tensor, out: Tensor
) -> None:
    cpu.gather_topk(store, table, torch.arange(len(slots)), indices, lengths, out)


def double_scale(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
) -> None:
    cpu.gather_all(store, table, slots, lengths, out)
    out[..., 64:128] *= 2


def ignores_lengths(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
) -> None:
    rooms = (table[slots] >= 0).sum(dim=1) * store.layout.entries
    cpu.gather_all(store, table, slots, rooms, out)


def leaves_rests(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
) -> None:
    before = out.clone()
    cpu.gather_all(store, table, slots, lengths, out)
    for b, length in enumerate(lengths.tolist()):
        out[b, length:] = before[b, length:]


def returns_its_output(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
) -> Tensor:
    mine = torch.empty_like(out)
    cpu.gather_all(store, table, slots, lengths, mine)
    return mine


def changes_lengths(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
) -> None:
    cpu.gather_all(store, table, slots, lengths, out)
    lengths += 1


def writes_behind_its_output(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
) -> None:
    cpu.gather_all(store, table, slots, lengths, out)
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()


def cleans_a_page(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
) -> None:
    cpu.gather_all(store, table, slots, lengths, out)
    store.pages[1].zero_()


def raises(store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor) -> None:
    raise RuntimeError("invalid device function\nand a long trace")


def newest_first(ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
    cpu.gather_window(ring, slots, tokens, out)
    out.copy_(out.flip(1))


def writes_a_neighbour(store: PageStore, values: Tensor, entries: Tensor) -> None:
    cpu.entry_insert(store, values, entries)
    neighbours = {int(e) + 1 for e in entries if 0 <= e < store.num_entries - 1}
    free = min(neighbours - set(entries.tolist()))
    cpu.entry_insert(store, values[:1], torch.tensor([free]))


def writes_for_minus_one(store: PageStore, values: Tensor, entries: Tensor) -> None:
    free = min(set(range(store.num_entries)) - set(entries.tolist()))
    cpu.entry_insert(store, values, entries.where(entries != -1, free))


def writes_padding(store: PageStore, values: Tensor, entries: Tensor) -> None:
    cpu.entry_insert(store, values, entries)
    store.pages[1, -1] = 1


def leaves_the_pad_byte(store: PageStore, values: Tensor, entries: Tensor) -> None:
    cpu.entry_insert(store, values, entries)
    store.scale_rows()[store.scale_index(entries[:1]), 7] = 9


def skips_the_last(store: PageStore, values: Tensor, entries: Tensor) -> None:
    cpu.entry_insert(store, values[:-1], entries[:-1])


def first_of_a_row_wins(ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor) -> None:
    for t in reversed(range(len(slots))):
        cpu.window_insert(ring, *(each[t : t + 1] for each in (values, slots, positions)))


def copies_backwards(store: PageStore, sources: Tensor, targets: Tensor) -> None:
    cpu.page_copy(store, targets, sources)


def never_rotates(store: PageStore, keys: Tensor, entries: Tensor, hadamard: bool) -> None:
    cpu.indexer_insert(store, keys, entries, False)


def turns_as_the_group_before(
    compressor: Compressor, values: Tensor, positions: Tensor, store: PageStore, entries: Tensor
) -> None:
    cpu.norm_rope_insert(compressor, values, positions - compressor.ratio, store, entries)


def appends_without_bias(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slots: Tensor,
    positions: Tensor,
) -> None:
    bias = compressor.ape[positions % compressor.ratio]
    cpu.state_append(compressor, state, kv, score - bias, slots, positions)


def rotates_at_the_last_token(
    compressor: Compressor,
    state: Tensor,
    slots: Tensor,
    positions: Tensor,
    store: PageStore,
    entries: Tensor,
) -> None:
    cpu.flush(compressor, state, slots, positions + compressor.ratio, store, entries)


def forms_angles_in_float64(compressor: Compressor, *others: Any) -> None:
    """As right as can be in the first groups, and far from the engines' float32 in the last."""
    rope = make_rope(load_model("v4-flash"), compressor.ratio, 0, "float64")
    cpu.flush(replace(compressor, rope=rope), *others)


def forgets_the_state(compressor: Compressor, state: Tensor, *others: Any) -> None:
    cpu.compress_chunk(compressor, state.clone(), *others)


def folds_no_constant(*arguments: Any) -> None:
    cpu.indexer_query(*arguments)
    arguments[-1].mul_(arguments[0].shape[1] ** 0.5 * 128**0.5 * 3)


def turns_first_channels(queries: Tensor, *others: Any) -> None:
    cpu.indexer_query(queries.roll(64, dims=2), *others)


def keeps_what_is_negative(*arguments: Any) -> None:
    *pages, queries, weights, blocks, out = arguments
    negative, score = torch.empty_like(out), cpu.index_scores
    score(*(*pages, queries ^ 128, weights, blocks, negative))
    score(*arguments)
    out -= negative.where(negative.isfinite(), 0)


def scores_what_is_not_seen(*arguments: Any) -> None:
    store, table, slots, lengths, *others = arguments
    cpu.index_scores(store, table, slots, lengths.where(lengths != 9, 10), *others)


def forgets_the_newest_block(
    scores: Tensor, lengths: Tensor, block_entries: int, out: Tensor
) -> None:
    cpu.select_blocks(scores, lengths - (lengths > block_entries).int() * 8, block_entries, out)


def takes_the_last_of_equals(scores: Tensor, lengths: Tensor, *others: Any) -> None:
    cpu.select_topk(scores + torch.arange(scores.shape[1]) * 1e-4, lengths, *others)


def gives_logical_entries(*arguments: Any) -> None:
    cpu.select_topk(*arguments)
    arguments[-1].copy_(arguments[-2])


def attends_without_sinks(*arguments: Any) -> None:
    given = list(arguments)
    given[6] = torch.full_like(arguments[6], -torch.inf)
    cpu.attend(*given)


def counts_the_sink_in_lse(*arguments: Any) -> None:
    cpu.attend(*arguments)
    torch.logaddexp(arguments[-1], arguments[6].expand_as(arguments[-1]), out=arguments[-1])


def attends_one_token_back(ring: PageStore, slots: Tensor, tokens: Tensor, *others: Any) -> None:
    cpu.attend(ring, slots, (tokens - 1).clamp(min=0), *others)
