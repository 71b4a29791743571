"""Isolation partitions: nearest seeds, cells, counts."""
