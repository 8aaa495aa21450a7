"""The promises of docs/promises.md, attacked for longer than tests may take: ``make attack``."""
