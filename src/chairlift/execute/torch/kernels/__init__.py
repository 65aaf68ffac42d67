"""Triton kernels, each beside what launches it. Every module's `VARIANTS` says how its kernels are used, for `variants`."""
