"""What can go wrong with a profiler."""

from dsv4kv.errors import Dsv4kvError


class ProfileError(Dsv4kvError):
    """A profiler that is absent, fails or hangs, or a profile that cannot be read."""

    exit_code = 9
