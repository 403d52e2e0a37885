"""A gather told in the plainest way, for measurements side by side."""

import torch
from torch import Tensor

from dsv4kv.ops.storage import PageStore


def plain_gather(store: PageStore, table: Tensor, slots: Tensor, topk: Tensor) -> Tensor:
    """Dequantise ``fp8_ds_mla`` entries int[B, K] through float32: bf16[B, K, 512]."""
    size = store.layout.entries
    topk = topk.long()
    entries = table[slots[:, None], topk // size].long() * size + topk % size
    page, row = entries // size, entries % size
    data = store.pages[:, : size * 576].reshape(-1, size, 576)[page, row]
    scales = store.pages[:, size * 576 : size * 584].reshape(-1, size, 8)[page, row, :7]
    values = data[..., :448].view(torch.float8_e4m3fn).float().view(*topk.shape, 7, 64)
    values = values * torch.exp2(scales.float() - 127).unsqueeze(-1)
    rope = data[..., 448:].contiguous().view(torch.bfloat16)
    return torch.cat([values.flatten(-2).bfloat16(), rope], dim=-1)
