"""Vectorised building blocks: products, elementwise functions, sums of rows, Cholesky."""
