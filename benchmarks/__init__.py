"""fastload against other loaders, each in its own process (README.md says how to run it)."""
