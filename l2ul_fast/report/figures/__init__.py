"""One figure and table of an experiment in each file."""
