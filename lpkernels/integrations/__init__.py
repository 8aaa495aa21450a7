"""Other libraries, each in a module that needs it and that nothing else here imports."""
