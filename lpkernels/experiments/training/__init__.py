"""The training loop, its configuration, and the callbacks that techniques hand to it."""
