"""Speed, measured: ``python -m bench.run`` (``make bench``). What to measure is in registry.py."""
