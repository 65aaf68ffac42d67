"""Decides which tokens of which requests run next, in which blocks. Standard library only."""
