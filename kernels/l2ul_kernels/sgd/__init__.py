"""Minibatch gradient descent of many models at once, noise, DeltaGrad."""
