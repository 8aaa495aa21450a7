"""Figures of this machine: its speed, its versions, single values through a format."""
