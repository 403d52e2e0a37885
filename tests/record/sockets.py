"""A publisher with the two sockets that vLLM's and SGLang's have."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from time import monotonic, sleep

import zmq

from dsv4kv.record.events import END
from tests.record.frames import Frames

PATIENCE_S = 120.0
_COMES = b"\x01"  # of a listener; b"\x00": one goes


class Publisher:
    """Sends messages, and again what it is asked for."""

    def __init__(self, port: int = 0, replay_port: int = 0) -> None:
        self._context = zmq.Context()
        self._live, self.port = self._bind(zmq.XPUB, port)
        self._live.setsockopt(zmq.XPUB_VERBOSE, 1)  # also who comes before another has gone
        self._again, self.replay_port = self._bind(zmq.ROUTER, replay_port)
        self.sent: list[Frames] = []
        self.endless = False  # whether it sends them again and again
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def wait_for_a_listener(self) -> None:
        """Until then nothing that is sent arrives."""
        end_s = monotonic() + PATIENCE_S
        while True:
            assert self._live.poll(int(max(0.0, end_s - monotonic()) * 1000))
            if self._live.recv().startswith(_COMES):
                return

    def send(self, message: Frames, *, lose: bool = False) -> None:
        """Send a message, or lose it on the way."""
        self.sent.append(message)
        if not lose:
            self._live.send_multipart(message)

    def close(self) -> None:
        """No socket is left."""
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _bind(self, kind: int, port: int) -> tuple["zmq.Socket[bytes]", int]:
        socket = self._context.socket(kind)
        socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        return socket, int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def _answer(self) -> None:
        while not self._stop.is_set():
            if not self._again.poll(10):
                continue
            client, _, first = self._again.recv_multipart()
            for message in cycle(self.sent) if self.endless else list(self.sent):
                if self._stop.is_set():
                    return
                if message[1] >= first:
                    self._again.send_multipart([client, b"", *message])
            self._again.send_multipart([client, b"", b"", END, b""])


@contextmanager
def publishing(port: int = 0, replay_port: int = 0) -> Iterator[Publisher]:
    """A publisher for the block."""
    publisher = Publisher(port, replay_port)
    try:
        yield publisher
    finally:
        publisher.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what comes soon."""
    end_s = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < end_s
        sleep(0.005)
