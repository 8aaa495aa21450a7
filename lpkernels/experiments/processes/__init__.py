"""Several processes that train one run: torchrun, DDP and FSDP2."""
