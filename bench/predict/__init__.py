"""What training would take on a GPU that is not there: ``python -m bench.predict --help``.

It is predicted from sizes and from counts of machine code in bench/results; docs/predictions.md has
the model. Nothing here is measured, and the package itself predicts nothing.
"""
