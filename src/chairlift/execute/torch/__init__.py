"""The executor in PyTorch: the same plans on NVIDIA GPUs, and slowly but truly on the CPU. The only home of torch."""
