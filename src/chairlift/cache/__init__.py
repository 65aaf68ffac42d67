"""KV memory as bookkeeping: reference-counted blocks and the prefix index. Standard library only, no tensors."""
