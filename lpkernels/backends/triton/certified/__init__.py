"""Float32 and float64 kernels of sums whose operands prove that they round right."""
