"""Settings of the whole suite."""

import os

from hypothesis import HealthCheck, settings

# Several workers share the cores: a kernel's CPU twin runs its blocks on a worker's part of them,
# and a thread of it that waits must not spin. Read when the first thread starts.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _WORKERS)))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Machines that run the tests may be busy: an example that takes long is no defect.
settings.register_profile(
    "dsv4kv", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dsv4kv")
