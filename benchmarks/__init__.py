"""asv suites. asv imports every file here; pytest-benchmark suites live in tests/bench.

asv runs the suites of this checkout against the package of any commit. They take the case table of this checkout as
well: every commit then does the same work, and commits from before a case was added can be measured too. Without a
checkout around, the installed table will do.
"""

import importlib.util
import os
import sys
from pathlib import Path

# before numpy loads: OpenBLAS threads that spin after their work would take a core from the next candidate
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "23")

_folder = Path(__file__).parents[1] / "l2ul_fast" / "cases"
if _folder.exists() and "l2ul_fast.cases" not in sys.modules:
    _spec = importlib.util.spec_from_file_location(
        "l2ul_fast.cases", _folder / "__init__.py", submodule_search_locations=[str(_folder)]
    )
    sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_spec.name])
