"""Where a store is, in one word: ``memory:64GiB``, ``file:/mnt/nvme/kv``."""

from dsv4kv.choices import STORES, choose
from dsv4kv.errors import ConfigError
from dsv4kv.tiers.stores.contract import Store
from dsv4kv.tiers.stores.namespace import Namespace


def open_store(place: str, namespace: Namespace) -> Store:
    """Open the store of a place for the objects of one namespace.

    Raises:
        ConfigError: There is no such kind of store, or it is not named as its kind is.
        StoreUnavailable: It cannot be reached or written.
    """
    kind, _, rest = place.partition(":")
    row = choose(STORES, kind, "a kind of store")
    if not rest:
        raise ConfigError(f"{place!r} does not say where: {kind} is {row.explains}.")
    store: Store = row.load()(rest, namespace)
    return store
