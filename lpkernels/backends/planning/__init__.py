"""Tiles, tiers and shares of the Triton kernels on a GPU, chosen by pure functions of sizes and
accumulators. Neither Triton nor a device is needed to ask them."""
