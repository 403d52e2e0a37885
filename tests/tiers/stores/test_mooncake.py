"""The Mooncake store, whose master and members come and go."""

import sys

import pytest

from dsv4kv.errors import ConfigError, StoreFull, StoreUnavailable
from dsv4kv.tiers.stores.place import open_store
from tests.ports import free_port
from tests.tiers.stores.kinds import FLASH, NEEDS_MOONCAKE, content, mooncake_server, poisoned


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mooncake", "mooncake.store"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match="pip install mooncake-transfer-engine"):
        open_store("mooncake:127.0.0.1:50051", FLASH)


@NEEDS_MOONCAKE
@pytest.mark.parametrize("place", ["here", "127.0.0.1", "1GiB@127.0.0.1:x"])
def test_what_is_no_address_is_a_sentence(place: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        open_store(f"mooncake:{place}", FLASH)


@NEEDS_MOONCAKE
def test_a_master_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot be reached .* start mooncake_master"):
        open_store(f"mooncake:127.0.0.1:{free_port()}", FLASH)


@NEEDS_MOONCAKE
def test_a_master_that_stops_is_a_sentence_and_one_that_comes_back_is_used() -> None:
    port, room = free_port(), poisoned(5000)
    with mooncake_server(port) as at:
        store = open_store(f"mooncake:{at}", FLASH)
        store.put(["a"], [content(1, 5000)])
        assert store.get(["a"], [room]).all()
        with pytest.raises(StoreFull, match="no room for another object"):
            store.put([str(n) for n in range(12)], [content(1, 30 << 20)] * 12)
    for call in (
        lambda: store.exists(["a"]),
        lambda: store.get(["a"], [room]),
        lambda: store.put(["b"], [content(2, 100)]),
    ):
        with pytest.raises(StoreUnavailable, match="is mooncake_master there"):
            call()
    with mooncake_server(port):
        assert not store.get(["a"], [room]).any()  # what its member lent is gone
        store.put(["a"], [content(3, 5000)])
        assert store.get(["a"], [room]).all()
        assert (room == content(3, 5000)).all()
        assert store.damaged == 0
        store.close()
