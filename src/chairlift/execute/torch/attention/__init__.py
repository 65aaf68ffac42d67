"""Attention over blocks of keys and values, behind `plan` once a step and `run` once a layer."""
