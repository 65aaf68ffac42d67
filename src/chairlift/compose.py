"""Builds an engine from a configuration. With the command line, the only place that knows all layers."""
