"""Many runs as one experiment: specifications, cells, engines, statistics."""
