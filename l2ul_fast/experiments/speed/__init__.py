"""How fast each part is, beside its peers and its limits."""
