# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""Listens to an engine's publisher over tcp, in the engine's own process."""

import socket
import time
from collections.abc import Callable
from typing import Any

PATIENCE_MS = 10_000
SUBSCRIBING_S = 0.3


def publish_and_receive(
    open_publisher: Callable[[str], Any], publish: Callable[[Any], int]
) -> list[list[str]]:
    """The messages that came, their frames in hexadecimal.

    Args:
        open_publisher: Makes the engine's publisher at an endpoint.
        publish: Publishes through it; returns how many batches.
    """
    import zmq

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listener = zmq.Context.instance().socket(zmq.SUB)
    listener.setsockopt(zmq.SUBSCRIBE, b"")
    listener.setsockopt(zmq.RCVHWM, 0)
    listener.setsockopt(zmq.LINGER, 0)
    publisher = open_publisher(f"tcp://*:{port}")
    listener.connect(f"tcp://127.0.0.1:{port}")
    time.sleep(SUBSCRIBING_S)
    batches = publish(publisher)
    received = []
    for _ in range(batches):
        assert listener.poll(PATIENCE_MS), "a message was lost"
        received.append([frame.hex() for frame in listener.recv_multipart()])
    publisher.shutdown()
    listener.close()
    return received
