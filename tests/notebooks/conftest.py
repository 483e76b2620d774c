"""Slow tests of pages are long: the site build, which follows the tests in ``.ci/run``, runs every page."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("slow"):
            item.add_marker("long")
