"""The machine code, written as LLVM IR. Imported only when nothing compiled is in the cache."""
