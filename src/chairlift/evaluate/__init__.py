"""Is what an executor computes right: how much its rounding costs, and whether company changes a bit of it."""
