"""Figures of this machine: its speed, its versions."""
