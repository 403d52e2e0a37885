"""What a machine does while it is measured: clocks, limits, power, and who else is there.

A process of its own polls, so that nothing here runs on the measuring thread or takes its
interpreter lock; ``telemetry.Telemetry`` starts and stops it.
"""
