"""How a user or a system ends this process: Ctrl-C, SIGTERM and SIGHUP are one and the same."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ENDINGS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


def end_as_by_ctrl_c() -> None:
    """SIGTERM and SIGHUP are Ctrl-C from now on, but for those that are ignored (nohup)."""
    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


@contextmanager
def endings_put_off() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals never reach it
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)
