"""Files that an engine has written, one an object and nothing but it, to be read only.

``engines.sglang.files`` and ``engines.vllm.files`` say their names.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dsv4kv.errors import StoreUnavailable
from dsv4kv.tiers.stores.contract import Bytes, Found
from dsv4kv.tiers.stores.lanes import THREADS, Lanes


class RawFiles:
    """Objects in an engine's folder.

    Nothing but its length says that a file is whole, and nothing at all that it is right.

    Attributes:
        folder: Where; names are paths in it.
        damaged: None is ever found.
    """

    damaged = 0

    def __init__(self, folder: Path, *, threads: int = THREADS) -> None:
        """Raises ``StoreUnavailable`` where there is no such folder."""
        if not folder.is_dir():
            raise StoreUnavailable(f"{folder}: there is no such folder: name an engine's own.")
        self.folder, self._lanes = folder, Lanes(threads)

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """Refuse: the files are the engine's."""
        raise StoreUnavailable(f"{self.folder}: an engine's own files are only read.")

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """As every store's."""
        found = np.zeros(len(names), np.bool_)

        def get(number: int) -> None:
            try:
                path = f"{self.folder}/{names[number]}"
                after = self._lanes.read(path, into[number], 1)
                found[number] = after is not None and not len(after)
            except FileNotFoundError:
                return
            except OSError as error:
                raise StoreUnavailable(
                    f"{path}: it cannot be read ({error.strerror or error})."
                ) from None

        self._lanes.each(get, len(names))
        return found

    def exists(self, names: Sequence[str]) -> Found:
        """As every store's."""
        there = ((self.folder / name).is_file() for name in names)
        return np.fromiter(there, np.bool_, len(names))

    def delete(self, names: Sequence[str]) -> None:
        """Refuse: the files are the engine's."""
        self.put((), ())

    def close(self) -> None:
        """As every store's."""
        self._lanes.close()
