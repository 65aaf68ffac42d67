"""Records without files: what an engine says, as the lines of a record."""

from chairlift.core.config import EngineConfig
from chairlift.core.events import Step
from chairlift.engine.tape import Writer

KEY = b"a key of a test"


class Tape:
    """A sink that keeps the lines."""

    def __init__(self, config: EngineConfig, *, key: bytes = KEY) -> None:
        self._writer = Writer(config, key=key)
        self.lines = [self._writer.header(version="1", model="shadow", started=0.5) + "\n"]

    def on_step(self, step: Step) -> None:
        self.lines += [line + "\n" for line in self._writer.step(step)]

    def on_refusal(self, reason: str) -> None: ...
