"""Calls that, taken together, launch every kernel in every way in which it is compiled."""
