"""What is proved for every value rather than tested on some: ``make prove``."""
