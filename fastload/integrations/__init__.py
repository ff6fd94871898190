"""Thin adapters for training frameworks, each a module to import by name.

None of them imports its framework before it is used. docs/integrations.md says what each is for.
"""
