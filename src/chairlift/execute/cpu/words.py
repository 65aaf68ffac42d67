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
    "wide",
)
"""One per executor. `tokens`, `drawing` and `items` are the sizes of this step, `token_ids` to `answers` addresses of its arrays."""

SYNC_LINES = ("epoch", "stop", "arrived", "mutex", "condition", "parked")
"""Words that threads wait on; each begins a cache line of its own, mutex and condition take several."""
SYNC_OFFSETS = {"epoch": 0, "stop": 64, "arrived": 128, "parked": 192, "mutex": 256, "condition": 512}
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
    "merge": (*HEAD, "heads", "padded", "out", "out_stride", "window"),
    "activate": (*HEAD, "gate", "up", "stride", "width", "blocks", "floats", "floats_stride"),
    "quantise": (*HEAD, "input", "stride", "width", "blocks"),
    "sample": (*HEAD, "logits", "stride", "vocab"),
}
"""What each kind of instruction says after its head."""

WORK_ITEM = ("token", "position", "tokens", "table", "first", "segments", "partial", "floor")
"""A piece of attention: `tokens` query positions from `position` on, whose queries begin at row `token`.

`table` is where its blocks begin in the list of all block numbers. The segments from `first` to `first + segments - 1` are read. `partial` is the place of
the unmerged result, or -1 if all of it is here. Positions below `floor` are not seen (a padded row's own beginning).
"""

DRAW = ("row", "temperature", "top_k", "top_p", "min_p", "key", "banned", "banned_count")
"""One draw: which row of the logits, how, and with what noise. Temperature and the two after top-k are float64 bits."""
