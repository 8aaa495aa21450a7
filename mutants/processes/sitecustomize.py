"""Python imports this when it starts where ``PYTHONPATH`` has this folder (`mutants.source`)."""

from mutants.source import inherit

inherit()
