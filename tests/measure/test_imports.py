"""What importing the rooms that measure and report brings along."""

import subprocess
import sys


def test_the_polling_process_starts_with_little() -> None:
    code = (
        "import sys, dsv4kv.measure.polling\n"
        "print(*{'torch', 'numpy', 'pydantic', 'pynvml', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
