"""Training pairs of a learned head: which subsets, their fits, their features, and a ridge regression on them."""
