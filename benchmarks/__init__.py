"""asv suites. asv imports every file here; pytest-benchmark suites live in tests/bench."""
