"""What moves theta at a request: one module per head, all with the methods of `base.Head`."""
