"""Experiments in virtual time: what each policy promises, measured on the engine's own core."""
