"""Runs a program: every thread goes through all instructions, shares the work of each, and meets the others where it must.

Knows threads, waiting and the order of instructions; knows nothing of what they compute. A worker enters machine code once
and stays there: between steps it waits in a condition variable of the C library, without Python's lock and without using time.
"""

from collections.abc import Sequence

from chairlift.execute.cpu import words
from chairlift.execute.cpu.formats import FORMATS
from chairlift.execute.cpu.kernels.emit import I32, I64, VOID, Function, Module, Value
from chairlift.execute.cpu.kernels.gemm import Target
from chairlift.execute.cpu.words import INSTRUCTION_WORDS, STATE, SYNC_OFFSETS, WORD

PRODUCTS = len(FORMATS)
"""The first so many opcodes are products (`operations`)."""


def add_interpreter(module: Module, operations: Sequence[str], target: Target) -> None:
    """`run_step` for the thread that calls, `run_worker` for the others, `stop_workers` and `prepare` (see `pool`)."""
    meet = _meet(module, target)
    program = _program(module, operations, meet, target)
    _prepare(module)
    _run_step(module, program, target)
    _run_worker(module, program)
    _stop_workers(module)


class _State:
    def __init__(self, f: Function, address: Value) -> None:
        self._f, self._address = f, address

    def at(self, name: str) -> Value:
        return self._address + WORD * STATE.index(name)

    def word(self, name: str) -> Value:
        return self._f.load(I64, self.at(name))

    def sync(self, name: str) -> Value:
        return self.word("sync") + SYNC_OFFSETS[name]


def _c(f: Function, name: str, *arguments: Value) -> None:
    f.intrinsic(name, I32, *arguments)


def _now(f: Function, target: Target) -> Value:
    """The processor's counter of time; always 0 where there is none."""
    return f.whole(0) if target.clock is None else f.intrinsic(target.clock, I64)


def _meet(module: Module, machine: Target) -> Function:
    """(state, target): waits until so many threads have arrived in all: briefly in a loop, then giving the core away.

    Returns how long that was.
    """
    f = module.function("meet", [I64, I64], I64)
    came = _now(f, machine)
    state = _State(f, f.arguments[0])
    target, arrived = f.arguments[1], state.sync("arrived")
    f.fetch_add(arrived, f.whole(1))
    spins, patience = f.var(f.whole(0)), state.word("spins")
    with f.repeat(lambda: f.load_acquire(arrived) < target):
        spins.value = spins.value + 1
        with f.either(spins.value < patience) as (brief, long):
            with brief:
                if machine.pause is not None:
                    _pause(f, machine.pause)
            with long:
                _c(f, "sched_yield")
    f.ret(_now(f, machine) - came)
    return f


def _pause(f: Function, pause: str) -> None:
    if pause == "llvm.aarch64.hint":
        f.intrinsic(pause, VOID, f.number(I32, 1))
    else:
        f.intrinsic(pause, VOID)


def _program(module: Module, operations: Sequence[str], meet: Function, machine: Target) -> Function:
    """(state, scratch, number of the thread, ticks or 0): all instructions of a step."""
    f = module.function("program", [I64] * 4)
    address, scratch, own_number, ticks = f.arguments
    state = _State(f, address)
    waited = f.var(f.whole(0))
    threads = state.word("threads")
    target = f.var(state.word("barrier_base"))
    start, count = state.word("program"), state.word("instructions")
    _tick(f, machine, ticks, f.whole(0))
    with f.loop(0, count) as number:
        instruction = start + number * (WORD * INSTRUCTION_WORDS)
        head = {name: f.load(I64, instruction + WORD * words.HEAD.index(name)) for name in words.HEAD}
        after = f.builder.append_basic_block("after")
        switch = f.builder.switch(head["opcode"].ir, after)
        for opcode, name in enumerate(operations):
            block = f.builder.append_basic_block(name)
            switch.add_case(opcode, block)
            f.builder.position_at_end(block)
            f.call(module.ir.globals[name], instruction, address, scratch)
            f.builder.branch(after)
        f.builder.position_at_end(after)
        with f.when(head["barrier"].differs(0)):
            target.value = target.value + threads
            wait = f.call(meet.ir, address, target.value)
            # Only a product has pieces for every thread, so that its waits tell of a thread that lost its core.
            waited.value = waited.value + f.select(head["opcode"] < PRODUCTS, wait, f.whole(0))
        _tick(f, machine, ticks, number + 1)
    f.store(waited.value, state.word("waits") + own_number * words.LINE)
    f.ret()
    return f


def _tick(f: Function, machine: Target, ticks: Value, number: Value) -> None:
    with f.when(ticks.differs(0)):
        f.store(_now(f, machine), ticks + number * WORD)


def _prepare(module: Module) -> None:
    """(sync): makes the mutex and the condition variable."""
    f = module.function("prepare", [I64], public=True)
    sync = f.arguments[0]
    _c(f, "pthread_mutex_init", sync + SYNC_OFFSETS["mutex"], f.whole(0))
    _c(f, "pthread_cond_init", sync + SYNC_OFFSETS["condition"], f.whole(0))
    f.ret()


def _run_step(module: Module, program: Function, machine: Target) -> None:
    """(state, scratch): wakes the workers, computes with them, and returns when all is done."""
    f = module.function("run_step", [I64, I64], public=True)
    address, scratch = f.arguments
    state = _State(f, address)
    began = _now(f, machine)
    start, count = state.word("program"), state.word("instructions")
    with f.loop(0, count) as number:
        instruction = start + number * (WORD * INSTRUCTION_WORDS)
        f.store(f.whole(0), f.load(I64, instruction + WORD * words.HEAD.index("counter")))
    f.store(f.load_acquire(state.sync("arrived")), state.at("barrier_base"))
    wanted = state.word("wanted")
    with f.loop(0, wanted) as number:
        f.store(f.whole(0), state.word("waits") + number * words.LINE)
    # A worker that was not part of the last step may look at the number of threads only now: it must see the new one together
    # with the new epoch, or it would compute a step that has not been announced.
    _c(f, "pthread_mutex_lock", state.sync("mutex"))
    f.store(wanted, state.at("threads"))
    with f.when(wanted > 1):
        f.fetch_add(state.sync("epoch"), f.whole(1))
        _c(f, "pthread_cond_broadcast", state.sync("condition"))
    _c(f, "pthread_mutex_unlock", state.sync("mutex"))
    f.call(program.ir, address, scratch, f.whole(0), state.word("ticks"))
    f.store(_now(f, machine) - began, state.at("spent"))
    f.ret()


def _run_worker(module: Module, program: Function) -> None:
    """(state, scratch, number): takes part in every step that has more threads than its number, until it is told to stop."""
    f = module.function("run_worker", [I64, I64, I64], public=True)
    address, scratch, number = f.arguments
    state = _State(f, address)
    seen = f.var(f.whole(0))
    go_on = f.var(f.whole(1))
    mutex, condition = state.sync("mutex"), state.sync("condition")
    with f.repeat(lambda: go_on.value.differs(0)):
        _c(f, "pthread_mutex_lock", mutex)
        with f.repeat(lambda: _nothing_new(f, state, seen.value)):
            _c(f, "pthread_cond_wait", condition, mutex)
        seen.value = f.load_acquire(state.sync("epoch"))
        takes_part = state.word("threads") > number
        _c(f, "pthread_mutex_unlock", mutex)
        go_on.value = f.load_acquire(state.sync("stop")).equals(0).unsigned_to(I64)
        with f.when(go_on.value.differs(0)), f.when(takes_part):
            f.call(program.ir, address, scratch, number, f.whole(0))
    f.ret()


def _nothing_new(f: Function, state: _State, seen: Value) -> Value:
    same = f.load_acquire(state.sync("epoch")).equals(seen)
    return same & f.load_acquire(state.sync("stop")).equals(0)


def _stop_workers(module: Module) -> None:
    """(state): lets every worker return."""
    f = module.function("stop_workers", [I64], public=True)
    state = _State(f, f.arguments[0])
    _c(f, "pthread_mutex_lock", state.sync("mutex"))
    f.store_release(f.whole(1), state.sync("stop"))
    _c(f, "pthread_cond_broadcast", state.sync("condition"))
    _c(f, "pthread_mutex_unlock", state.sync("mutex"))
    f.ret()
