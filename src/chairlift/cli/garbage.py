"""How often Python looks for garbage in a process that serves. Knows nothing of what it serves."""

import gc

YOUNG = 10_000
"""So many more objects must have been made than freed before the young ones are looked through.

A step makes about two for every sequence that runs, and frees those of the step before. Of Python's usual 700 that comes to a
look in every step or two, with nothing to find: what a step makes does not refer to itself.
"""


def spare() -> None:
    """To be called when all is loaded. That stays, so it is not looked at again: full passes would stop every stream for it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
