"""One file a command: its name is the file's, its help the file's docstring. A file put here is found by itself."""
