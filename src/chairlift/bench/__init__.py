"""Measurements of an engine, as plain figures: what it does in a second, and how near that is to what the machine can do."""
