"""Objects in a Redis or Valkey server: ``DIGEST/NAME``, sealed.

The package is redis-py, the extra ``redis``. What is kept for how long is the server's to say:
``maxmemory`` and ``maxmemory-policy``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from time import monotonic
from typing import Any

import numpy as np

from dsv4kv.bench.tiers.store import Bytes, Found, Namespace, Seals, cut
from dsv4kv.errors import ConfigError, StoreFull, StoreUnavailable

TIMEOUT_S = 5.0
_TRIP_BYTES = 32 << 20  # sent or answered at once: a server keeps as much for every client
_OTHER_BYTES = 1 << 20  # of an answer beside the objects asked for
_TIMEOUTS = 10  # in which an answer has come to its end


class RedisStore:
    """Objects in a server."""

    def __init__(self, url: str, namespace: Namespace, *, timeout_s: float = TIMEOUT_S) -> None:
        """Reach the server.

        Args:
            url: ``redis://…``, ``rediss://…`` for TLS or ``unix://…``, as redis-py has them;
                or ``[USER:PASSWORD@]HOST:PORT/DATABASE``.
            namespace: Whose objects these are.
            timeout_s: How long the server may be silent; whole answers have ten times as long.

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
        self._timeout_s, self._asked = timeout_s, local()
        self._seals, self._prefix = Seals(namespace), f"{namespace.digest}/"
        try:
            self._client: Any = redis.Redis.from_url(
                url if "://" in url else f"redis://{url}",
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                redis_connect_func=self._bound,
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
        keys = [self._prefix + name for name in names]
        values = self._ask(lambda pipe, n: pipe.get(keys[n]), [len(each) for each in into])
        found = (self._take(*each) for each in zip(names, values, into, strict=True))
        return np.fromiter(found, np.bool_, len(names))

    def exists(self, names: Sequence[str]) -> Found:
        keys = [self._prefix + name for name in names]
        there = self._ask(lambda pipe, n: pipe.exists(keys[n]), [0] * len(names))
        return np.array(there, np.bool_)

    def delete(self, names: Sequence[str]) -> None:
        keys = [self._prefix + name for name in names]
        self._ask(lambda pipe, n: pipe.unlink(keys[n]), [0] * len(names))

    def close(self) -> None:
        self._client.close()

    def _bound(self, connection: Any) -> None:
        """Greet a server from which no more is read than was asked for."""
        connection._sock = _Bounded(connection._sock, self._allowance)
        connection.on_connect()

    def _allowance(self) -> tuple[int, float]:
        most = getattr(self._asked, "size", 0) + _OTHER_BYTES
        return most, monotonic() + _TIMEOUTS * self._timeout_s

    def _ask(self, ask: Callable[[Any, int], object], sizes: Sequence[int]) -> list[Any]:
        """The server's answers, asked for in as few trips as memory allows."""
        answers = list[Any]()
        for trip in cut(sizes, _TRIP_BYTES):
            self._asked.size = sum(sizes[trip.start : trip.stop])
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
        """Delete a damaged object, unless it was replaced since."""
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
        except (self._errors.RedisError, OSError, ValueError, RecursionError) as error:
            raise StoreUnavailable(
                f"redis at {self._where}: no answer that can be used ({_short(error)}): is it a "
                "Redis or Valkey server, and can it be written?"
            ) from None


class _Bounded:
    """A socket that limits the bytes and the time of every answer."""

    def __init__(self, line: Any, allowance: Callable[[], tuple[int, float]]) -> None:
        self._line, self._allowance = line, allowance
        self._left, self._end_s = allowance()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)

    def sendall(self, data: bytes) -> None:
        self._line.sendall(data)
        self._left, self._end_s = self._allowance()

    def recv(self, size: int) -> bytes:
        data: bytes = self._line.recv(size)
        self._count(len(data))
        return data

    def recv_into(self, *room: Any) -> int:
        size: int = self._line.recv_into(*room)
        self._count(size)
        return size

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError("its answer is longer than what was asked for")
        if monotonic() > self._end_s:
            raise ValueError("its answer does not end")


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")[:200]
