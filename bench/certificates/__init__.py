"""Which kernels facts by block of operands would choose: a study of real training."""
