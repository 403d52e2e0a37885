"""Objects in a Redis or Valkey server: ``DIGEST/NAME``, sealed.

The package is redis-py, the extra ``redis``. What is kept for how long is the server's to say:
``maxmemory`` and ``maxmemory-policy``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dsv4kv.errors import ConfigError, StoreFull, StoreUnavailable
from dsv4kv.tiers.stores.contract import Bytes, Found
from dsv4kv.tiers.stores.namespace import Namespace
from dsv4kv.tiers.stores.seals import SEAL_BYTES, Seals
from dsv4kv.tiers.stores.trips import trips

TIMEOUT_S = 5.0


def open_redis(place: str, namespace: Namespace) -> "RedisStore":
    """A store in the server at ``[USER:PASSWORD@]HOST:PORT/DATABASE``, or of that URL."""
    return RedisStore(place if "://" in place else f"redis://{place}", namespace)


class RedisStore:
    """Objects in a server."""

    def __init__(self, url: str, namespace: Namespace, *, timeout_s: float = TIMEOUT_S) -> None:
        """Reach the server.

        Args:
            url: ``redis://…``, ``rediss://…`` for TLS or ``unix://…``, as redis-py has them.
            namespace: Whose objects these are.
            timeout_s: How long the server may be silent.

        Raises:
            ConfigError: The package is not installed, or there is no such URL.
            StoreUnavailable: The server is not there, or is none.
        """
        try:
            import redis
        except ImportError:
            raise ConfigError(
                "redis: the package is not installed: pip install 'dsv4kv[redis]'."
            ) from None
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._errors, self._found_damaged = redis.exceptions, list[str]()
        self._seals, self._prefix = Seals(namespace), f"{namespace.digest}/"
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except ValueError as error:
            raise ConfigError(f"redis: this is no server's address: {error}.") from None
        where = self._client.connection_pool.connection_kwargs
        self._where = where.get("path") or f"{where.get('host')}:{where.get('port', 6379)}"
        with self._translated():
            self._client.ping()

    @property
    def damaged(self) -> int:
        """As every store's, found by this process."""
        return len(self._found_damaged)

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """As every store's."""

        def put(pipe: Any, number: int) -> None:
            name, each = names[number], data[number]
            pipe.set(self._prefix + name, each.tobytes() + self._seals.seal(name, each))

        for _ in self._trips(put, [len(each) for each in data]):
            pass

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """As every store's."""

        def get(pipe: Any, number: int) -> None:
            pipe.get(self._prefix + names[number])

        values = self._trips(get, [len(each) for each in into])
        found = (self._take(*each) for each in zip(names, values, into, strict=True))
        return np.fromiter(found, np.bool_, len(names))

    def exists(self, names: Sequence[str]) -> Found:
        """As every store's: a damaged object is there until somebody gets it."""

        def exists(pipe: Any, number: int) -> None:
            pipe.exists(self._prefix + names[number])

        return np.fromiter(self._trips(exists, [0] * len(names)), np.bool_, len(names))

    def delete(self, names: Sequence[str]) -> None:
        """As every store's."""

        def delete(pipe: Any, number: int) -> None:
            pipe.unlink(self._prefix + names[number])

        for _ in self._trips(delete, [0] * len(names)):
            pass

    def close(self) -> None:
        """As every store's."""
        self._client.close()

    def _trips(self, ask: Callable[[Any, int], None], sizes: Sequence[int]) -> Iterator[Any]:
        """The server's answers, asked for in as few trips as memory allows."""
        for start, end in trips(sizes):
            with self._translated(), self._client.pipeline(transaction=False) as pipe:
                for number in range(start, end):
                    ask(pipe, number)
                answers = pipe.execute()
            yield from answers

    def _take(self, name: str, value: bytes | None, into: Bytes) -> bool:
        if value is None:
            return False
        content = np.frombuffer(value, np.uint8)
        if self._seals.content(name, content) is None:
            self._remove(name, value)
            return False
        if len(content) != len(into) + SEAL_BYTES:
            return False
        np.copyto(into, content[: len(into)])
        return True

    def _remove(self, name: str, value: bytes) -> None:
        """Delete what is damaged, unless somebody has put it anew since."""
        key = self._prefix + name
        self._found_damaged.append(name)
        with self._translated(), self._client.pipeline() as pipe:
            pipe.watch(key)
            if pipe.get(key) == value:
                pipe.multi()
                pipe.unlink(key)
                try:
                    pipe.execute()
                except self._errors.WatchError:
                    return

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._errors.OutOfMemoryError as error:
            raise StoreFull(
                f"redis at {self._where}: no room for another object ({_short(error)}): delete "
                "some, raise maxmemory, or let the server evict by maxmemory-policy."
            ) from None
        except (self._errors.RedisError, OSError, ValueError) as error:
            raise StoreUnavailable(
                f"redis at {self._where}: no answer that can be used ({_short(error)}): is it a "
                "Redis or Valkey server, and can it be written?"
            ) from None


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")[:200]
