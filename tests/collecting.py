"""A plugin with the fixture `collecting`: finalisers run in the middle of anything.

Test files that ask for it say ``pytest_plugins = ["collecting"]``.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def collecting() -> Iterator[None]:
    """A collection starts with nearly every object made, and looks only at what the test has made."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()
