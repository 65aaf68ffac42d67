"""Sinks: what happened, as metrics. Nothing below knows that they exist."""
