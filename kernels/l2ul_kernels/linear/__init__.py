"""Models of a linear predictor: their losses, and exact integer sums of the losses' derivatives over rows."""
