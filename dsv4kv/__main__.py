"""``python -m dsv4kv``: the same program as the ``dsv4kv`` command.

``-m`` puts the current folder on the path, which goes before anything else is imported;
``python -P -m dsv4kv`` never puts it there.
"""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    from dsv4kv.cli import main

    main()
