"""Launch plans: grid and arguments of every kernel, made from tensors alone.

A plan knows no driver, so the GPU launcher and the CPU twin of the tests run the very same plans.
"""
