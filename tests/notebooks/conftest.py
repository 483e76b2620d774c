"""The tests of single pages are long: the site build, which follows the tests in ``.ci/run``, runs every page."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
OF_ALL_PAGES = ("test_answers.py", "test_course.py", "test_notebooks.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents and item.path.name not in OF_ALL_PAGES:
            item.add_marker("long")
