"""Models, data sets, the trainer and the runs of the command line and the examples."""
