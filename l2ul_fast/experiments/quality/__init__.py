"""How near answers are to a retrained model, and checks that must hold before anything is timed."""
