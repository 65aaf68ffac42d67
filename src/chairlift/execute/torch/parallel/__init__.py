"""Tensor parallelism (Shoeybi et al., "Megatron-LM", 2019): several processes compute every step together, each its share."""
