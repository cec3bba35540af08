"""The mathematics of the kernels: torch tensors in, torch tensors out, no stores and no schedulers."""
