"""Small multilayer perceptrons: forward, gradient, Hessian, training of many at once."""
