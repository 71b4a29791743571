"""pytest-benchmark suites are left out unless --benchmark-enable or --benchmark-only asks for them."""


def pytest_collection_modifyitems(config, items):
    if config.getoption("benchmark_enable") or config.getoption("benchmark_only"):
        return
    here = [item for item in items if "benchmark" in getattr(item, "fixturenames", ())]
    if here:
        config.hook.pytest_deselected(items=here)
        items[:] = [item for item in items if item not in here]
