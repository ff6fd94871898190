"""Measuring this loader on this machine, and photographs to measure it with."""
