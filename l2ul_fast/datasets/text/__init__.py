"""Original text files: where they are, how they are fetched, parsed and converted."""
