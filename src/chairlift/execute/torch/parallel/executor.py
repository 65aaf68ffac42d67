"""The executor of rank 0: hands every plan to the other ranks before it computes its own share, and notices when one is gone.

Knows plans, followers and its own executor; how a model is cut is known below it. Whatever goes wrong here is the end: ranks
that are not at the same place can never be brought together again.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NoReturn, Protocol

from chairlift.core.costs import ModelCost
from chairlift.core.errors import ChairliftError, ExecutorLost
from chairlift.core.ports import GaugedExecutor
from chairlift.core.types import Plan, Result
from chairlift.execute.torch import warming
from chairlift.execute.torch.device import Device, lacking
from chairlift.execute.torch.executor import TorchExecutor
from chairlift.execute.torch.options import Choice
from chairlift.execute.torch.parallel.channel import Free, Opened, Order, Ready, Sizes
from chairlift.execute.torch.parallel.group import Group, Ranks, meet
from chairlift.execute.torch.parallel.launch import FOLLOWER, Crew
from chairlift.execute.torch.parallel.wire import encode
from chairlift.models.description import Model

log = logging.getLogger(__name__)

ANSWER_S = 60.0
"""A step that takes longer than this will never end: a rank stands still."""
GROUP_S = 90.0
"""On a GPU a group that waits for longer ends the process, so it must wait for longer than we do."""
RELEASE_S = 5.0
"""After a rank is lost: whoever is not held up by it has ended everything by then."""
POLL_S = 0.0001
"""Between two looks at a device that computes: less than a step's smallest part."""


class Polled(GaugedExecutor, Protocol):
    """An executor that can be asked whether anybody would have to wait for it."""

    @property
    def done(self) -> bool:
        """Whether `collect` would return at once."""
        ...


class ParallelExecutor:
    """One executor that computes on several devices. `launch` and `collect` raise ExecutorLost, and never wait for the dead."""

    def __init__(
        self,
        own: Polled,
        crew: Crew,
        group: Group,
        *,
        timeout_s: float = ANSWER_S,
        release_s: float = RELEASE_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._own, self._crew, self._group = own, crew, group
        self._timeout_s, self._release_s, self._clock = timeout_s, release_s, clock
        self._ended = threading.Event()
        self._flights = 0
        self._broken = False

    @classmethod
    def load(
        cls,
        model: Model,
        *,
        choice: Choice,
        size: int,
        sizes: Sizes,
        on_tensor: Callable[[int, int], None] | None = None,
        on_compile: Callable[[], None] = lambda: None,
        timeout_s: float = ANSWER_S,
        group_s: float = GROUP_S,
    ) -> "ParallelExecutor":
        """Starts the other ranks and reads all weights, every rank its share; otherwise as `TorchExecutor.load`.

        If there are kernels to compile, they are compiled. Raises what a follower fails with as if it had failed here.
        `on_tensor` and `on_compile` follow rank 0: what it reads, and that it compiles.
        """
        assert choice.eager is not None, "followers capture nothing"

        def told(done: int, total: int) -> None:
            crew.check()
            if on_tensor is not None:
                on_tensor(done, total)

        device = choice.device
        device.share(size)
        crew = Crew(device.ranks(size), timeout_s=timeout_s)
        with _ended_on_failure(crew) as on_failure:
            crew.start()
            store = meet(timeout_s=group_s)
            crew.order(_order(model, choice, sizes, port=store.port, timeout_s=group_s))
            crew.expect(Opened)
            group = Ranks.join(0, size, device, store=store, timeout_s=group_s)
            on_failure.callback(group.close)
            own = TorchExecutor.load(model.description, model.weights, choice=choice, on_tensor=told, group=group, **sizes)
            crew.expect(Ready)
            executor = cls(own, crew, group, timeout_s=timeout_s)
            executor.guard()
            if choice.fused:
                on_compile()
                needed = {"block_size": sizes["block_size"], "max_tokens": sizes["max_tokens"]}
                executor.warm_up(warming.plans(vocab=model.description.vocab, **needed))
        return executor

    @property
    def cost(self) -> ModelCost:
        """Of a rank."""
        return self._own.cost

    @property
    def computed(self) -> tuple[float, float]:
        return self._own.computed

    @property
    def threads(self) -> None:
        """PyTorch chooses them."""

    @property
    def isa(self) -> None:
        """PyTorch chooses it."""

    def limits(self) -> None:
        """There is no measurement of a device yet."""

    def warm_up(self, plans: Iterable[Plan]) -> None:
        """Computes them on all ranks and forgets them. They come as any others do, so a rank that dies meanwhile is noticed."""
        for plan in plans:
            self.launch(plan)
            self.collect()

    def guard(self) -> None:
        """From now on nobody is held up for long by a rank that is gone.

        A device takes only so many launches ahead. If it waits for a rank in the midst of a step of many layers, so does who
        asks for the rest of that step, and looks at nothing else. Once the group is closed, what waits goes on, to no purpose.
        """

        def release() -> None:
            if self._crew.await_loss() is not None and not self._ended.wait(self._release_s):
                self._group.close()

        threading.Thread(target=release, name="release", daemon=True).start()

    def launch(self, plan: Plan) -> None:
        try:
            self._crew.check()
            self._crew.send(encode(plan))
            self._own.launch(plan)
            self._flights += 1
        except Exception as error:  # noqa: BLE001  (whatever it is, the ranks are not at the same place any more)
            self._lose(error)

    def collect(self) -> Result:
        try:
            self._await()
            result = self._own.collect()
            self._crew.check()  # a step that was released from its waiting has computed nothing that is true
        except Exception as error:  # noqa: BLE001  (as above)
            self._lose(error)
        self._flights -= 1
        return result

    def watch(self, lost: Callable[[str], None]) -> None:
        """See `Perishable`."""

        def wait() -> None:
            why = self._crew.await_loss()
            if why is not None:
                lost(why)

        threading.Thread(target=wait, name="lost ranks", daemon=True).start()

    def close(self) -> None:
        """The other ranks end with it. Nobody waits for a device on which a step waits for one that is gone."""
        with suppress(ExecutorLost):
            while self._flights and not self._broken:
                self.collect()
        broken = self._broken or self._crew.lost.is_set()
        if not broken:
            self._own.close()
        self._ended.set()
        self._crew.close(at_once=broken)
        self._group.close()

    def _await(self) -> None:
        began = self._clock()
        while not self._own.done:
            if self._crew.lost.wait(POLL_S):
                self._crew.check()
            if self._clock() - began > self._timeout_s:
                raise ExecutorLost(f"the ranks have not ended a step in {self._timeout_s:g} s")

    def _lose(self, error: Exception) -> NoReturn:
        self._broken = True
        if isinstance(error, ExecutorLost) and not self._crew.lost.is_set():
            raise error
        lacks = lacking(error)
        if lacks is not None:
            raise ExecutorLost(f"rank 0: too little memory: {lacks}") from error
        try:
            self._crew.explain()
        except ChairliftError as why:
            raise ExecutorLost(str(why)) from error
        log.error("a rank has failed", exc_info=error)
        raise ExecutorLost(f"rank 0 cannot go on: {_line(error)}") from error


def least_free_bytes(device: Device, size: int, *, follower: str = FOLLOWER) -> int | None:
    """What the rank with the least has free on its own device. None if they work in the memory of the machine."""
    own = device.free_bytes()
    if own is None or size == 1:
        return own
    crew = Crew(device.ranks(size), timeout_s=ANSWER_S, follower=follower)
    try:
        told = crew.start().expect(Free)
    finally:
        crew.close()
    return min(own, *(one.bytes for one in told if one.bytes is not None))


def _order(model: Model, choice: Choice, sizes: Sizes, *, port: int, timeout_s: float) -> Order:
    assert model.reference, "a model that nobody else can open"
    return Order(os.fsencode(model.reference), choice.dtype_name, choice.attention.name, sizes, port, timeout_s)


@contextmanager
def _ended_on_failure(crew: Crew) -> Iterator[ExitStack]:
    """If anything fails, ends the followers, and whatever else is put on the stack, and raises what was behind it."""
    with ExitStack() as on_failure:
        on_failure.callback(crew.close, at_once=True)
        try:
            yield on_failure
        except ChairliftError:
            raise
        except Exception:
            crew.explain()
            raise
        on_failure.pop_all()


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
