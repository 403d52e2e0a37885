"""Settings of the whole suite."""

import os

from hypothesis import HealthCheck, settings

# Several workers share the cores: a thread of a kernel's CPU twin that waits must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when the first thread starts

# Machines that run the tests may be busy: an example that takes long is no defect.
settings.register_profile(
    "dsv4kv", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dsv4kv")
