"""The training loop, its configuration, and the parts that techniques hand to it."""
