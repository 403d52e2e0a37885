"""What is launched: CUDA sources, their compile-time parameters, and launch plans.

A launch plan is made from tensors alone and knows no driver, so the GPU launcher and the CPU twin
of the tests run the very same plans.
"""
