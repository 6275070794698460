"""One file per command: its name is the file's, its help the docstring. Files put here are found automatically."""
