"""What every source of a recording is: something that runs until it is stopped."""

from threading import Event
from typing import Protocol

from dsv4kv.errors import ConfigError


class Source(Protocol):
    """Runs in a thread of its own and writes what it hears."""

    def run(self, stop: Event) -> None:
        """Listen until ``stop`` is set, or until there is nothing more; then write what is left.

        Raises:
            Dsv4kvError: It cannot listen, or the recording cannot be written.
        """


def missing_package(package: str) -> ConfigError:
    """The sentence about a package of the extra."""
    return ConfigError(
        f"recording needs the package {package}, which is not installed: "
        "pip install 'dsv4kv[record]'."
    )
