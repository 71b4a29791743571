"""One dataset file: its layout, how it is written, verified and read, chunk by chunk and row by row."""
