"""Settings of the whole suite."""

from hypothesis import HealthCheck, settings

# Machines that run the tests may be busy: an example that takes long is no defect.
settings.register_profile(
    "dsv4kv", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dsv4kv")
