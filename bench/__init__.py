"""Measurements of speed: ``python -m bench.run`` (``make bench``). registry.py lists the cases."""
