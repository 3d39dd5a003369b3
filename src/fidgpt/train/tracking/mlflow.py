"""MLflow: a SQLite file beside the runs, or a server."""

import logging
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fidgpt.train.tracking.aside import Aside
from fidgpt.train.tracking.described import Described, numbers
from fidgpt.train.tracking.journal import Journal
from fidgpt.train.tracking.trackers import Row

# What one request takes at most, and what a name and a value may be.
_METRICS, _PARAMS, _VALUE, _NAME = 1000, 100, 6000, 250
_FORBIDDEN = re.compile(r"[^\w\-. :/]+")
T = TypeVar("T")


class MLflow(Aside):
    """A run of an MLflow experiment.

    Args:
      experiment: where the run is listed.
      tracking_uri: a server, or a database such as `sqlite:////data/mlflow.db`; unless said what
        MLFLOW_TRACKING_URI says, or else `mlflow.db` in the folder of the runs.
    """

    title = "MLflow"
    extra = "mlflow"
    packages = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, *, experiment: str = "fidgpt", tracking_uri: str | None = None) -> None:
        super().__init__(destination=f"{tracking_uri}/{experiment}")
        self._experiment = experiment
        self._uri = tracking_uri
        self._client: Any = None
        self._id: str | None = None

    def open(self, run: Described, journal: Journal) -> str:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

        # Its own tries would fill the terminal, and new tables are no news there.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        folder = run.path.resolve().parent
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder}/mlflow.db"
        self._client = client = MlflowClient(tracking_uri=uri)
        artifacts = (folder / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
        experiment = _experiment(client, self._experiment, artifacts)
        if not _is_known(client, journal.id):
            begun = client.create_run(experiment, run_name=run.name, tags=_tags(run))
            journal.write(step=journal.step, identity=begun.info.run_id)
        self._id = journal.id
        client.update_run(journal.id, status="RUNNING")
        _describe(client, journal.id, run.config)
        return shlex.join(["mlflow", "ui", "--backend-store-uri", uri])

    def write(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        assert self._id is not None
        now = int(time.time() * 1000)
        metrics = [
            Metric(_FORBIDDEN.sub("_", name), value, now, row["step"])
            for row in rows
            for name, value in numbers(row).items()
        ]
        for some in _batches(metrics, _METRICS):
            self._client.log_batch(self._id, metrics=some)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._id is not None:
            client.set_terminated(self._id)


def _experiment(client: Any, name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]

    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    try:
        return client.create_experiment(name, artifact_location=artifacts)
    except MlflowException:  # another run was faster
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return found.experiment_id


def _is_known(client: Any, identity: str) -> bool:
    from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]

    try:
        client.get_run(identity)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return False
        raise
    return True


def _tags(run: Described) -> dict[str, str]:
    return {"group": run.group} if run.group else {}


def _describe(client: Any, identity: str, config: Mapping[str, object]) -> None:
    """Gives the run the parameters that it lacks: MLflow keeps the first value of each."""
    from mlflow.entities import Param  # pyright: ignore[reportMissingImports]

    known = client.get_run(identity).data.params
    named = {_name(path): str(value)[:_VALUE] for path, value in config.items()}
    params = [Param(name, value) for name, value in named.items() if name not in known]
    for some in _batches(params, _PARAMS):
        client.log_batch(identity, params=some)


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _name(path: str) -> str:
    """`model.blocks[0].mlp` -> `model.blocks.0.mlp`, as brackets are not taken."""
    return _FORBIDDEN.sub(".", path).replace("..", ".").strip(".")[-_NAME:]
