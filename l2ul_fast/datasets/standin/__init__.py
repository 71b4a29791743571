"""Stand-ins: generated rows with the shape and statistics of the seven real datasets."""

from l2ul_fast.datasets.standin.rows import GENERATOR_VERSION, generate, make

__all__ = ["GENERATOR_VERSION", "generate", "make"]
