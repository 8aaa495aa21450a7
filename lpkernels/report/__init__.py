"""Tables and plots of result records."""
