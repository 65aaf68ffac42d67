"""What a server asks of the garbage collector."""

import gc

from chairlift.cli import garbage


def test_what_was_loaded_is_not_looked_at_again_and_the_rest_seldom() -> None:
    usual = gc.get_threshold()
    loaded = [[]]
    try:
        garbage.spare()
        assert not any(known is loaded for known in gc.get_objects())
        assert gc.get_threshold() == (garbage.YOUNG, *usual[1:])
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)
