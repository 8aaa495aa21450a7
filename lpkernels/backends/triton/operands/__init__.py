"""Operands as products read them: gathered, rounded, laid out, with the facts that they prove."""
