"""Functions of torch that need more than a lowering, one a file: handlers of their own, and kernels in front of torch's."""
