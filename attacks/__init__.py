"""What docs/promises.md promises, attacked for longer than tests may take: ``make attack``."""
