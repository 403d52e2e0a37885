"""``python -m dsv4kv``: the same program as the ``dsv4kv`` command."""

from dsv4kv.cli import main

if __name__ == "__main__":
    main()
