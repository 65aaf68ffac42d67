"""The CPU executor: a whole step in machine code that LLVM makes from Python, one native call a step and thread."""
