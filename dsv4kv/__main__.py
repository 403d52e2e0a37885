"""``python -m dsv4kv``: the same program as the ``dsv4kv`` command."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, whose files are nobody's modules
    from dsv4kv.cli import main

    main()
