"""Step: what the compiler of this machine makes of the kernels."""

import re
import subprocess
import sys

from dsv4kv.errors import CudaUnavailable
from dsv4kv.ops.cuda.inspection import find_disassembler
from visit.desk import Desk, NoTool

_PROBLEM = re.compile(r"^problem: ", re.MULTILINE)


def run(desk: Desk) -> None:
    """Answer the question of ``questions.KERNELS``."""
    try:
        find_disassembler()
    except CudaUnavailable as error:
        raise NoTool(error) from None
    command = [sys.executable, "-m", "dsv4kv", "kernels", "--check", "--arch", "sm_90a"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    problems = len(_PROBLEM.findall(done.stderr))
    if done.returncode and not problems:
        raise SystemExit(f"kernels --check ended with exit code {done.returncode}")
    desk.answer("kernels_check", problems)
