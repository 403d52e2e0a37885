"""``python -m dsv4kv``: the same program as the ``dsv4kv`` command.

``-m`` puts the current folder on the path, which goes before anything else is imported;
``python -P -m dsv4kv`` never puts it there.
"""

import sys


def main() -> None:
    """Run the program; Ctrl-C while it is imported ends it without a traceback."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until ``run`` takes it
    from dsv4kv.cli import main as run

    run()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    main()
