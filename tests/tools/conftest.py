"""A cluster for the tests of commands that take --ray."""

from __future__ import annotations

import pytest

from tests.tools.ray_nodes import Cluster


@pytest.fixture
def cluster(tmp_path):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    (tmp_path / "nodes").mkdir()
    found = Cluster(tmp_path / "nodes")
    try:
        yield found
    finally:
        found.stop()
