"""Connecting to a Ray cluster: what is shown where none answers."""

import os
from typing import Any

import pytest

from fidgpt.graph import ConfigError
from fidgpt.sweep.runners import ray_cluster

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fidgpt[ray]'")


def test_rays_own_warnings_are_not_shown_while_one_connects(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Loud:
        def init(self, address: str, **said: Any) -> None:
            os.write(2, b"gcs_client.cc:210: Failed to get cluster ID")
            raise ConnectionError("Failed to connect")

    with pytest.raises(ConfigError, match="no Ray cluster answers at address=there: Failed"):
        ray_cluster._connect(Loud(), "there")
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"
