"""``python -m bench.zoo``: which part of fourteen kinds of models a published method emulates.

Each model of `bench.zoo.models` is converted by the name of a method and trained for one step; then
its products are counted, forward and backward (`lpkernels.nn.summary`). The rows go into the table
of docs/results/layers.md between the two comments; tests/project/test_zoo.py compares them.
"""
