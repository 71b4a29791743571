"""The paper's datasets, one file each; `registry` imports them all."""
