"""Measuring: records and their schema, timing, the environment, and comparing two commits."""
