"""Connecting to a Ray cluster: what is shown where none answers."""

import os
import socket
from typing import Any

import pytest

from fidgpt.graph import ConfigError
from fidgpt.sweep.runners import ray_cluster
from fidgpt.sweep.runners.ray_cluster import RayRunner

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fidgpt[ray]'")
_WAIT = "RAY_gcs_server_port_wait_time_s"


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


def test_ray_itself_is_told_to_give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf:
        def init(self, address: str, **said: Any) -> None:
            assert float(os.environ[_WAIT]) <= 5
            raise ConnectionError("Failed to connect")

    monkeypatch.delenv(_WAIT, raising=False)
    with pytest.raises(ConfigError):
        ray_cluster._connect(Deaf(), "there")
    monkeypatch.delenv(_WAIT)


def test_what_is_waited_for_is_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def silent(address: tuple[str, int], *, timeout: float) -> socket.socket:
        assert said == ["Connecting to Ray at 10.0.0.1:6379."] and timeout <= 5
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", silent)
    runner = RayRunner(address="10.0.0.1:6379")
    with (
        pytest.raises(ConfigError, match="no Ray cluster answers at address=10.0.0.1:6379: timed"),
        runner.connected(said.append),
    ):
        pass
