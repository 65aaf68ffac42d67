"""Examines and measures the executor in PyTorch on one machine in a few minutes: see docs/guide/gpu-check.md.

`__main__` runs every stage in a process of its own (`stage`), which writes down what it finds (`records`); `report` tells it.
The modules that run before those processes, and around them, need the standard library alone.
"""
