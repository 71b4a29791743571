"""All public functions refuse what they cannot compute with: one sentence, and nothing has changed."""

import copy
import re
import warnings

import numpy as np
import pytest
from kernel_contract import NO_DATA, rows, spoilt, valid

import l2ul_kernels as lk
from l2ul_kernels.codegen.twins import COMPILED

TABLE = rows()
#: Errors of Python and numpy themselves: they do not say which argument is at fault.
RAW = re.compile(
    "not supported between|unsupported operand|could not convert|ufunc|unhashable|cannot be interpreted|broadcast"
    "|ambiguous|has no attribute|must be real|only length-1|only 0-dim|safely|index"
)


def test_every_public_name_has_a_row():
    assert set(lk.__all__) - NO_DATA == {name for name in TABLE if name in lk.__all__}


@pytest.mark.parametrize("name", TABLE)
def test_valid_arguments_are_accepted(name):
    row = rows()[name]
    row[0](**valid(row))


def arrays(values, function):
    """All that a refused call must leave as it is."""
    state = getattr(function, "__self__", None)
    held = [v for v in vars(state).values() if isinstance(v, np.ndarray)] if hasattr(state, "net") else []
    return [v for v in values.values() if isinstance(v, np.ndarray)] + held


@pytest.mark.parametrize(
    ("name", "argument"), [(name, a) for name, row in TABLE.items() for a, how in row[1].items() if how.kind]
)
def test_a_spoilt_argument_is_refused_in_a_sentence_and_changes_nothing(name, argument):
    row, accepted, wrong = rows()[name], [], []
    for how, values in spoilt(row, argument):
        held = arrays(values, row[0])
        before = copy.deepcopy([np.asarray(a) for a in held])
        try:
            with warnings.catch_warnings():
                if COMPILED:  # else kernels are NumPy, which warns of infinities
                    warnings.simplefilter("error")
                row[0](**values)
            accepted.append(how)
        except (ValueError, TypeError) as error:
            text = str(error)
            if "\n" in text or not 10 < len(text) < 250 or RAW.search(text):
                wrong.append(f"{how}: {text}")
        except Exception as error:
            wrong.append(f"{how}: {error!r:.200}")
        partly = name == "assign_cells" and argument == "X"  # its `out` may be written in part, as its contract says
        for a, b in zip(before[:-1] if partly else before, held[:-1] if partly else held, strict=True):
            np.testing.assert_array_equal(a, np.asarray(b), err_msg=how)
    assert (accepted, wrong) == ([], [])
