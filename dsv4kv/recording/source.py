"""What every source of a recording is: something that runs until it is stopped."""

from collections.abc import Collection, Iterable
from threading import Event
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from dsv4kv.errors import ConfigError
from dsv4kv.recording.folder import Record

PROXY = "proxy:"
"""How the name of a proxy begins, as a source."""
HTTP = ("http", "https")


class Source(Protocol):
    """Runs in a thread of its own and writes what it hears."""

    def run(self, stop: Event) -> None:
        """Listen until ``stop`` is set, or until there is nothing more; then write what is left.

        Raises:
            Dsv4kvError: It cannot listen, or the recording cannot be written.
        """


def parse_url(url: str, schemes: Collection[str], sentence: str) -> SplitResult:
    """The parts of an address that has a host, of one of the schemes.

    Raises:
        ConfigError: It is none; with the sentence.
    """
    try:
        url.encode()  # which fails at half characters, as the next does at long names
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
        good = parts.scheme in schemes and host and host.isprintable() and (parts.port or True)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(sentence)
    return parts


def missing_package(package: str) -> ConfigError:
    """The sentence about a package of the extra."""
    return ConfigError(
        f"recording needs the package {package}, which is not installed: "
        "pip install 'dsv4kv[record]'."
    )


def is_exchange(row: Record) -> bool:
    """Whether a row of ``requests`` is a request of its own, as a proxy's is, whatever its id."""
    return str(row.get("source", "")).startswith(PROXY)


def count_requests(rows: Iterable[Record]) -> int:
    """How many requests there are: of those in a log, several rows have one id."""
    seen, logged, exchanges = set[object](), set[object](), 0
    for number, row in enumerate(rows):
        exchange = is_exchange(row)
        exchanges += exchange
        (seen if exchange else logged).add(row.get("id", f"row {number}"))
    return exchanges + len(logged - seen)
