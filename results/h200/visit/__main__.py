"""``visit.sh``: makes packages importable that the machine lacks, then runs the command."""

import os
import sys
import tempfile

from visit import carried


def main() -> int:
    """Run what the command line asks for."""
    with tempfile.TemporaryDirectory(prefix="dsv4kv-site-") as site:
        if carried.install(site):
            sys.path.insert(0, site)  # here, and in the steps' processes
            os.environ["PYTHONPATH"] = os.pathsep.join([site, os.environ["PYTHONPATH"]])
        from visit.commands import main as run

        return run()


if __name__ == "__main__":
    sys.exit(main())
