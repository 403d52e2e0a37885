"""What prompts have in common: where their hashes are equal, so are their tokens."""

import numpy as np
from numpy.typing import NDArray

from dsv4kv.workload.inputs import InputBank
from dsv4kv.workload.request import Request

Rows = NDArray[np.int64]


class PromptContents:
    """Input rows of the prompts in flight, by the running number of their request.

    A prompt's tokens are those of its prefix hashes, so that two prompts with equal hashes hand
    the cache equal data; all other tokens are the request's own.
    """

    def __init__(self) -> None:
        self._hashes: dict[int, tuple[Rows, int, int]] = {}

    def add(self, serial: int, request: Request) -> None:
        """A request begins."""
        if request.prefix_hashes:
            hashes = np.array(request.prefix_hashes, dtype=np.int64)
            reach = min(len(hashes) * request.hash_block_tokens, request.input_tokens)
            self._hashes[serial] = hashes, request.hash_block_tokens, reach

    def remove(self, serial: int) -> None:
        """A request has ended."""
        self._hashes.pop(serial, None)

    def rows(self, serials: Rows, positions: Rows, rejected: NDArray[np.bool_]) -> Rows:
        """Input rows of tokens, int64[T], as ``InputBank.rows`` numbers them."""
        rows = InputBank.rows(serials, positions, rejected)
        for serial in np.unique(serials).tolist():
            if serial in self._hashes:
                hashes, block_tokens, reach = self._hashes[serial]
                mine = (serials == serial) & (positions < reach)
                inside = positions[mine]
                rows[mine] = InputBank.rows(hashes[inside // block_tokens], inside)
        return rows
