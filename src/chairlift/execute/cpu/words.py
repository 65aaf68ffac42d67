"""The shape of what Python and the machine code tell each other: arrays of 64-bit words, addressed by name.

Knows the names and their order, nothing of what is done with them. Both sides import this, so they cannot disagree.
"""

WORD = 8
LINE = 64
"""Bytes of a cache line: words that several threads write to lie this far apart."""

INSTRUCTION_WORDS = 32

HEAD = ("opcode", "barrier", "counter", "count")
"""Every instruction begins with these.

`barrier`: all threads meet after it. `counter`: the address of the word from which threads claim work. `count`: the address of
the word that says how many rows there are.
"""

STATE = (
    "program",
    "instructions",
    "threads",
    "wanted",
    "tokens",
    "drawing",
    "items",
    "token_ids",
    "positions",
    "slots",
    "last",
    "work",
    "tables",
    "sync",
    "barrier_base",
    "spins",
    "partials",
    "row_draws",
    "draws",
    "answers",
    "spent",
    "waits",
    "ticks",
)
"""One per executor.

`threads` take part in the step that runs; `wanted` shall in the next one, and becomes `threads` when that is announced.
`tokens`, `drawing` and `items` are the sizes of a step, `token_ids` to `tables` and `row_draws` to `answers` its arrays.
Times are those of the processor's time stamp counter. `spent` is how long the last step took; at `waits` every thread has a
cache line whose first word says how long it waited for others meanwhile, where there was work for all of them. `ticks` is 0,
or where the thread that calls notes the time before the first instruction and after each.
"""

SYNC_OFFSETS = {"epoch": 0, "stop": 64, "arrived": 128, "mutex": 256, "condition": 512}
"""Where the words lie that threads wait on, in bytes: on cache lines of their own."""
SYNC_BYTES = 1024

OPERANDS = {
    "embed": (*HEAD, "weights", "groups", "out", "stride", "scale"),
    "gemm": (*HEAD, "input", "weights", "groups", "strips", "chunk", "out", "stride", "bias"),
    "norm": (
        *HEAD,
        "x",
        "stride",
        "width",
        "padded",
        "epsilon",
        "add",
        "add_stride",
        "add_norm",
        "weight",
        "select",
        "blocks",
        "floats",
        "floats_stride",
    ),
    "rotary": (
        *HEAD,
        "qkv",
        "stride",
        "key_at",
        "value_at",
        "heads",
        "kv_heads",
        "head_dim",
        "padded",
        "scale",
        "epsilon",
        "query_norm",
        "key_norm",
        "turns",
        "keys",
        "values",
        "key_scales",
        "value_scales",
    ),
    "attend": (
        *HEAD,
        "queries",
        "stride",
        "heads",
        "kv_heads",
        "padded",
        "keys",
        "values",
        "key_scales",
        "value_scales",
        "window",
        "out",
        "out_stride",
        "block_size",
        "queries_a_key",
    ),
    "activate": (*HEAD, "gate", "up", "stride", "width", "blocks", "floats", "floats_stride"),
    "quantise": (*HEAD, "input", "stride", "width", "blocks"),
    "sample": (*HEAD, "logits", "stride", "vocab"),
    "probe_read": (*HEAD, "data", "bytes", "sums"),
    "probe_dot": (*HEAD, "weights", "inputs", "turns", "sums"),
}
"""What each kind of instruction says after its head."""

WORK_ITEM = ("token", "position", "tokens", "table", "first", "segments", "partial", "parts")
"""A piece of attention: `tokens` query positions from `position` on, whose queries begin at row `token`.

`table` is where its blocks begin in the list of all block numbers; where all are runs, it is the first of them. The segments
from `first` to `first + segments - 1` are read. `partial` is -1, or the place of the first of `parts` results that are to be
joined: one for each segment of a position.
"""

DRAW = (
    "row",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "key",
    "changed",
    "mask",
    "banned",
    "banned_count",
    "biased",
    "biases",
    "bias_count",
    "history",
    "history_count",
    "prompt_count",
    "repetition",
    "frequency",
    "presence",
    "told",
    "top",
)
"""One draw: which row of the logits, how, and with what noise. Probabilities, temperature and penalties are float64 bits.

If `changed` is 0, the logits are drawn from as they are, and what follows up to `presence` is not looked at. `mask`, `banned`,
`biased` (ids), `biases` (float64) and `history` (32-bit ids, of which the first `prompt_count` are the prompt's) are addresses,
or 0. `told` is 0 or the address where the log probability of the token, its rank, the ids of the `top` best and their log
probabilities are wanted, float64 all of them.
"""

BROKEN, EXCLUDED = -1, -2
"""Answers that are no tokens: the logits were not finite numbers, or every id was excluded."""

PROBE_STEPS = 8
PROBE_SLABS = 8
"""What a turn of the probe of dot products multiplies, and how many turns differ. All of it fits a first-level cache."""
