"""Proofs for every value, where tests try some: ``make prove``."""
