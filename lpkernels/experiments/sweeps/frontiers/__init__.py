"""Frontiers of memory and error: what a study trains, what it measures first, what it predicts."""
