"""The rounding of one value: bits, draws, the rule of a format."""
