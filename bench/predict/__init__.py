"""The predicted time of training on a GPU that is not there: ``python -m bench.predict --help``.

The prediction follows from sizes and from counts of machine code in bench/results;
docs/predictions.md has the model. Nothing here is measured, and the package itself predicts
nothing.
"""
