"""The vocabulary that all layers share: types, ports, events, configuration and errors. Standard library only."""
