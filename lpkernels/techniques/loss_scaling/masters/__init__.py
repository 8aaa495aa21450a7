"""Masters of the weights: an optimizer whose weights, masters and states have formats."""
