"""Whether tests notice a wrong line: ``make mutants``."""
