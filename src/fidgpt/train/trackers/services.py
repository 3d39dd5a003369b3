"""TensorBoard, Weights & Biases, MLflow and Trackio."""

import logging
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fidgpt.train.trackers.trackers import (
    PATIENCE,
    PERIOD,
    BackgroundTracker,
    Journal,
    Row,
    RunDescription,
    numbers,
    texts,
)

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

__all__ = ["MLflow", "TensorBoard", "Trackio", "WandB"]


# Limits of one request, and of a value and a name.
_METRICS, _PARAMS, _VALUE, _NAME = 1000, 100, 6000, 250
_FORBIDDEN = re.compile(r"[^\w\-. :/]+")


class _Service(BackgroundTracker):
    """A tracker whose `open` keeps a run object that takes rows and is finished."""

    _run: Any = None

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()


class MLflow(BackgroundTracker):
    """A run of an MLflow experiment.

    Args:
      experiment: where the run is listed.
      tracking_uri: a server, or a database such as `sqlite:////data/mlflow.db`; None for the
        environment variable MLFLOW_TRACKING_URI, or else `mlflow.db` beside the run directories.
    """

    title = "MLflow"
    extra = "mlflow"
    packages = ("mlflow", "sqlalchemy", "alembic")
    SENDS: ClassVar[Mapping[str, str]] = {"tracking_uri": "metrics"}

    def __init__(self, *, experiment: str = "fidgpt", tracking_uri: str | None = None) -> None:
        super().__init__(destination=f"{tracking_uri}/{experiment}")
        self._experiment = experiment
        self._uri = tracking_uri
        self._client: Any = None
        self._id: str | None = None

    def open(self, run: RunDescription, journal: Journal) -> str:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports]

        # Its own retries and the creation of its tables would fill the terminal.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        folder = run.path.resolve().parent
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder}/mlflow.db"
        self._client = client = MlflowClient(tracking_uri=uri)
        artifacts = (folder / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
        known = client.get_experiment_by_name(self._experiment)
        experiment = (
            client.create_experiment(self._experiment, artifact_location=artifacts)
            if known is None
            else known.experiment_id
        )
        begun = client.search_runs([experiment], f"tags.fidgpt = '{journal.id}'")
        tags = {"fidgpt": journal.id, **({"group": run.group} if run.group else {})}
        one = begun[0] if begun else client.create_run(experiment, run_name=run.name, tags=tags)
        self._id = one.info.run_id
        client.update_run(self._id, status="RUNNING")
        # MLflow keeps the first value of each parameter, and rejects another one.
        known = one.data.params
        named = {_name(path): str(value)[:_VALUE] for path, value in run.config.items()}
        params = [Param(name, value) for name, value in named.items() if name not in known]
        for at in range(0, len(params), _PARAMS):
            client.log_batch(self._id, params=params[at : at + _PARAMS])
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
        for at in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._id, metrics=metrics[at : at + _METRICS])

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._id is not None:
            client.set_terminated(self._id)


def _name(path: str) -> str:
    """Write `model.blocks[0].mlp` as `model.blocks.0.mlp`: brackets are not allowed."""
    return _FORBIDDEN.sub(".", path).replace("..", ".").strip(".")[-_NAME:]


class TensorBoard(BackgroundTracker):
    """Writes `tensorboard/` into the run directory; `tensorboard --logdir=runs` compares runs."""

    title = extra = "tensorboard"
    packages = ("tensorboard",)

    def __init__(self) -> None:
        super().__init__(destination="")
        self._writer: SummaryWriter | None = None

    def open(self, run: RunDescription, journal: Journal) -> str:
        from torch.utils.tensorboard.writer import SummaryWriter  # late: an extra

        folder = run.path / "tensorboard"
        # Later steps, of a failed write or another config, are hidden.
        self._writer = SummaryWriter(str(folder), purge_step=journal.step + 1)
        table = [f"| {name} | {value} |" for name, value in run.config.items()]
        text = "\n".join(["| value | is |", "| --- | --- |", *table])
        self._writer.add_text("config", text, global_step=journal.step + 1)
        return shlex.join(["tensorboard", f"--logdir={run.path.parent}"])

    def write(self, rows: Sequence[Row]) -> None:
        assert self._writer is not None
        for row in rows:
            for name, value in numbers(row).items():
                self._writer.add_scalar(name, value, global_step=row["step"])
            for name, text in texts(row).items():
                verbatim = "\n".join(f"    {line}" for line in text.splitlines())  # in Markdown
                self._writer.add_text(name, verbatim, global_step=row["step"])
        self._writer.flush()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class Trackio(_Service):
    """A run of a Trackio project, stored in TRACKIO_DIR.

    Args:
      project: where the run is listed.
      space: the Hugging Face Space that shows it, `user/name`; None for this machine.
    """

    title = "Trackio"
    extra = "trackio"
    packages = ("trackio",)
    SENDS: ClassVar[Mapping[str, str]] = {"space": "metrics"}

    def __init__(self, *, project: str = "fidgpt", space: str | None = None) -> None:
        super().__init__(destination=f"{space}/{project}")
        self._project = project
        self._space = space

    def open(self, run: RunDescription, journal: Journal) -> str:
        import trackio  # pyright: ignore[reportMissingImports]

        self._run = trackio.init(
            self._project,
            name=f"{run.name}-{journal.id[:4]}",  # names are identities here
            group=run.group,
            space_id=self._space,
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return f"trackio show --project {self._project}"

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(numbers(row), step=row["step"])


class WandB(_Service):
    """A run of Weights & Biases, its files in `wandb/` of the run directory.

    Args:
      project: where the run is listed.
      entity: the team or user that owns the project; None for yourself.
      mode: `online`, `offline`, or None for WANDB_MODE, and offline if no account is known on this
        machine; `wandb sync` uploads what was written offline.
    """

    title = "Weights & Biases"
    extra = "wandb"
    packages = ("wandb",)
    SENDS: ClassVar[Mapping[str, str]] = {"entity": "metrics"}

    def __init__(
        self,
        *,
        project: str,
        entity: str | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        super().__init__(destination=f"{entity}/{project}")
        self._project = project
        self._entity = entity
        self._mode: Literal["online", "offline"] | None = mode

    def open(self, run: RunDescription, journal: Journal) -> str:
        import wandb  # pyright: ignore[reportMissingImports]

        logging.raiseExceptions = False  # its own log, on a full disk, would print stacks
        mode = self._mode
        if not (mode or os.environ.get("WANDB_MODE")):  # it would ask on the terminal
            mode = None if wandb.login(prompt=False, verify=False) else "offline"
        # The console belongs to the run; machine, commit and diff are in the run directory.
        settings = wandb.Settings(
            silent=True, console="off", disable_git=True, finish_timeout=PATIENCE
        )
        # Otherwise rows wait 15 s, and a kill loses them. Older versions lack this setting.
        if hasattr(settings, "x_transaction_log_flush_interval"):
            settings.x_transaction_log_flush_interval = PERIOD
        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            mode=mode,
            dir=run.path,
            id=journal.id,
            name=run.name,
            group=run.group,
            config=dict(run.config),
            resume="allow",
            allow_val_change=True,
            settings=settings,
        )
        if self._run.offline:
            folder = shlex.quote(str(run.path / "wandb"))
            return f"offline; later: wandb sync {folder}/offline-run-*"
        return str(self._run.url)

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            # Committed, or wandb would hold it until the next one, or a kill.
            self._run.log({**numbers(row), **texts(row)}, step=row["step"], commit=True)
