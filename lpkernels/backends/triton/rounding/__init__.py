"""What rounds one value: bits, draws, the rule of a format."""
