"""The PyTorch executor: the same plans on NVIDIA GPUs, and slowly but truly on the CPU. The only home of torch and triton."""
