"""Objects in a Redis or Valkey server: ``DIGEST/NAME``, sealed.

The package is redis-py, the extra ``redis``. What is kept for how long is the server's to say:
``maxmemory`` and ``maxmemory-policy``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dsv4kv.errors import ConfigError, StoreFull, StoreUnavailable
from dsv4kv.tiers.store import Bytes, Found, Namespace, Seals, cut

TIMEOUT_S = 5.0
_TRIP_BYTES = 32 << 20  # sent or answered at once: a server keeps as much for every client


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

        self._errors, self.damaged = redis.exceptions, 0
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

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """See ``Store``."""

        def put(pipe: Any, number: int) -> None:
            name, each = names[number], data[number]
            pipe.set(self._prefix + name, each.tobytes() + self._seals.seal(name, each))

        self._ask(put, [len(each) for each in data])

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """See ``Store``."""
        keys = [self._prefix + name for name in names]
        values = self._ask(lambda pipe, n: pipe.get(keys[n]), [len(each) for each in into])
        found = (self._take(*each) for each in zip(names, values, into, strict=True))
        return np.fromiter(found, np.bool_, len(names))

    def exists(self, names: Sequence[str]) -> Found:
        """See ``Store``."""
        keys = [self._prefix + name for name in names]
        there = self._ask(lambda pipe, n: pipe.exists(keys[n]), [0] * len(names))
        return np.array(there, np.bool_)

    def delete(self, names: Sequence[str]) -> None:
        """See ``Store``."""
        keys = [self._prefix + name for name in names]
        self._ask(lambda pipe, n: pipe.unlink(keys[n]), [0] * len(names))

    def close(self) -> None:
        """See ``Store``."""
        self._client.close()

    def _ask(self, ask: Callable[[Any, int], object], sizes: Sequence[int]) -> list[Any]:
        """The server's answers, asked for in as few trips as memory allows."""
        answers = list[Any]()
        for trip in cut(sizes, _TRIP_BYTES):
            with self._translated(), self._client.pipeline(transaction=False) as pipe:
                for number in trip:
                    ask(pipe, number)
                answers += pipe.execute()
        return answers

    def _take(self, name: str, value: bytes | None, into: Bytes) -> bool:
        if value is None:
            return False
        content = self._seals.content(name, np.frombuffer(value, np.uint8))
        if content is None:
            self._remove(name, value)
        if content is None or len(content) != len(into):
            return False
        np.copyto(into, content)
        return True

    def _remove(self, name: str, value: bytes) -> None:
        """Delete what is damaged, unless somebody has put it anew since."""
        key = self._prefix + name
        self.damaged += 1
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
