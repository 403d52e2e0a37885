"""Ports for programs that have to be given one."""

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """A free port below those that systems hand out: nobody else gets it until it is taken."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port
