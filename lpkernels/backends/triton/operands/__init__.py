"""Operands as products read them: gathered, rounded, laid out, with what they prove."""
