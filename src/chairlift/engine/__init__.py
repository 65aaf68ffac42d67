"""The loop around scheduler and executor, and the clients that talk to it."""
