"""The training loop, what configures it, and the parts that techniques hand to it."""
