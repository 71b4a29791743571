"""splitmix64: its published values, and the same from arrays and from compiled code."""

import numpy as np

from l2ul_kernels.splitmix import GOLDEN, mix, mix_all

#: The first values of the reference implementation for the seed 1234567.
FIRST = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)


def test_values_are_those_of_the_reference_implementation():
    with np.errstate(over="ignore"):
        states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * GOLDEN
        assert [int(mix(z)) for z in states] == list(FIRST)
        assert mix_all(states).tolist() == list(FIRST)
