"""Members of a population: how their runs descend from one another, and how a node trains them.

It is sent to the nodes by value, so it imports little but the standard library, and no torch.
"""

import hashlib
import json
import math
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fidgpt.files import atomic_path
from fidgpt.sweep.runners.remote import Place, Tail, failure_reason

FILE = "lineage.jsonl"
METRICS = "metrics.jsonl"
SNAPSHOTS = ".snapshots"  # of runs at the last looks, which clones begin from
_NUM_SNAPSHOTS = 2  # of a run: it may train to its next look before it is cloned
_STATE = "state.json"
_BEAT = 1.0  # seconds between two reports
_STOPPED = (130, 143)  # exit statuses of a run that was asked to stop


@dataclass(frozen=True)
class Lineage:
    """The descent of a run of a population.

    Attributes:
      fingerprint: of the directives, the member, and the run's ancestors.
      member: the number of the member.
      parent: the fingerprint of the run that it was cloned from; None for a first run.
      step: the step after which it was cloned.
      directives: all directives of its config.
      values: the values of the spaces, by name.
    """

    fingerprint: str
    member: int
    parent: str | None
    step: int
    directives: list[str]
    values: dict[str, Any]

    @property
    def short(self) -> str:
        """The first digits of the fingerprint, which name the run directory."""
        return self.fingerprint[:12]

    @property
    def varied(self) -> list[str]:
        """The directives of the spaces."""
        return [one for one in self.directives if one.partition("=")[0].strip() in self.values]


def lineage_of(
    config: Mapping[str, Any], *, member: int, parent: str | None = None, step: int = 0
) -> Lineage:
    """Return the lineage of a first run, or of a clone, by its directives and values."""
    directives, values = config["directives"], config["values"]
    text = json.dumps([directives, member, parent, step])
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    return Lineage(fingerprint, member, parent, step, directives, values)


def read_lineages(directory: Path) -> dict[str, Lineage]:
    """Return all runs of a population by fingerprint."""
    names = Lineage.__dataclass_fields__
    rows = [{name: row[name] for name in names} for row in Tail(directory / FILE).rows()]
    return {row["fingerprint"]: Lineage(**row) for row in rows}


def add_lineage(directory: Path, lineage: Lineage) -> None:
    """Record a run of a population."""
    row = json.dumps({"run": lineage.short, **asdict(lineage)}, ensure_ascii=False)
    with (directory / FILE).open("a", encoding="utf-8") as file:
        file.write(f"{row}\n")


def ancestors(lineages: Mapping[str, Lineage], fingerprint: str) -> list[Lineage]:
    """Return a run and all that it descends from, the first one first."""
    line = [lineages[fingerprint]]
    while line[0].parent is not None:
        line.insert(0, lineages[line[0].parent])
    return line


def schedule(line: Sequence[Lineage], *, run_dir: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the commands that repeat the last run of a line, with all changes on its way.

    Args:
      line: a run after all that it descends from.
      run_dir: the directory of the repetition.
      flags: of every command.
    """
    commands: list[str] = []
    for number, one in enumerate(line):
        before = line[number - 1].directives if number else ()
        changes = [f"--config={text}" for text in one.directives if text not in before]
        words = ["python", "train.py", *flags, *changes]
        words += [f"--{'resume' if number else 'run_dir'}={run_dir}", "--allow_noop"]
        if number + 1 < len(line):
            words.append(f"--until_step={line[number + 1].step}")
        commands.append(shlex.join(words))
    return commands


@dataclass(frozen=True)
class Plan:
    """Settings that all members of a population share.

    Attributes:
      folder: the directory of the population.
      program: the command that trains.
      every: steps from one look to the next.
      num_steps: steps of the whole run.
      objective: the name of the metric.
      worst: the value of a run that failed.
      environment: of the training processes.
      working_directory: of the training processes.
      keeper: the command that runs a process under a keeper.
    """

    folder: Path
    program: list[str]
    every: int
    num_steps: int
    objective: str
    worst: float
    environment: Mapping[str, str]
    working_directory: str
    keeper: list[str]

    def command(self, lineage: Lineage, run: Path, *, until: int) -> list[str]:
        """Return the command that trains a run until a step."""
        changes, target = lineage.directives, f"--run_dir={run}"
        if is_begun(run):
            # A clone's directory is copied with the values of its parent.
            changes = lineage.varied if lineage.parent else []
            target = f"--resume={run}"
        directives = [f"--config={text}" for text in changes]
        return [*self.program, "--allow_noop", f"--until_step={until}", *directives, target]


def is_begun(run: Path) -> bool:
    """Return whether a directory holds a run."""
    return (run / "config.json").exists()


def measured(run: Path, step: int, name: str) -> float | None:
    """Return a metric of a run at a step."""
    rows = [row for row in Tail(run / METRICS).rows() if row["step"] == step]
    return float(rows[-1][name]) if rows and name in rows[-1] else None


def copy_run(source: Path, target: Path, *, step: int) -> None:
    """Copy a run as it was after a step, whole or not at all; checkpoints are linked.

    Folders of trackers are left out: to them, the copy is a new run.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = f"checkpoints/step_{step:08d}"
    with atomic_path(target) as draft:
        draft.mkdir()
        for path in source.iterdir():
            if path.is_file() and path.name != "done.json" and not path.name.startswith("."):
                shutil.copy2(path, draft / path.name)
        rows = [row for row in Tail(source / METRICS).rows() if row["step"] <= step]
        metrics = "".join(f"{json.dumps(row)}\n" for row in rows)
        (draft / METRICS).write_text(metrics, encoding="utf-8")
        shutil.copytree(source / checkpoint, draft / checkpoint, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def _take_snapshot(run: Path, step: int) -> None:
    """Keep a run as it is at a look, for members that clone it."""
    folder = run.parent / SNAPSHOTS / run.name
    target = folder / f"{step:08d}"
    if not target.exists() and (run / "checkpoints" / f"step_{step:08d}").exists():
        copy_run(run, target, step=step)
        names = sorted(path for path in folder.iterdir() if path.name.isdigit())
        for path in names[:-_NUM_SNAPSHOTS]:
            shutil.rmtree(path)


Report = Callable[..., None]


def train_member(config: Mapping[str, Any], plan: Plan) -> None:
    """Train a member from look to look: the function that Ray Tune runs on a node.

    A look that the run has passed before, as under a command that was stopped, is reported from its
    files, so that the same looks lead to the same clones. Each report has the lineage and an event:
    waits (another process has the run), runs, look, and broken, by which errors are reported, as
    Ray would retry them.
    """
    from ray import tune

    member = int(tune.get_context().get_trial_id().rpartition("_")[2])
    config = config["member"]
    lineage, step, failure = lineage_of(config, member=member), 0, ""
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = json.loads((Path(folder) / _STATE).read_text())
        step, failure, before = state["step"], state["failure"], Lineage(**state["lineage"])
        if before.member != member and not failure:
            lineage = lineage_of(config, member=member, parent=before.fingerprint, step=step)
        else:
            lineage = before

    def report(event: str, *, checkpoint: Any = None, **facts: Any) -> None:
        tune.report({"event": event, "lineage": asdict(lineage), **facts}, checkpoint=checkpoint)

    try:
        while step < plan.num_steps:
            step = min(step + plan.every, plan.num_steps)
            value = None
            if not failure:
                value, failure = _reach(lineage, step, plan, report)
            state = {"lineage": asdict(lineage), "step": step, "failure": failure}
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / _STATE).write_text(json.dumps(state))
                shown = {plan.objective: plan.worst if value is None else value}
                report(
                    "look",
                    checkpoint=tune.Checkpoint.from_directory(folder),
                    **{"step": step, "reason": failure, "done": step == plan.num_steps, **shown},
                )
    except Exception as error:
        report("broken", reason=f"{type(error).__name__}: {error}")


def _reach(lineage: Lineage, until: int, plan: Plan, report: Report) -> tuple[float | None, str]:
    """Train a run until a look; returns its objective, or why it failed."""
    run = plan.folder / lineage.short
    if lineage.parent is not None and not is_begun(run):
        snapshots = run.parent / SNAPSHOTS / lineage.parent[:12]
        copy_run(snapshots / f"{lineage.step:08d}", run, step=lineage.step)
    while (value := measured(run, until, plan.objective)) is None:
        status, reason = _run_process(lineage, run, until, plan, report)
        if status == 0:
            if (value := measured(run, until, plan.objective)) is None:
                names = list({name: None for row in Tail(run / METRICS).rows() for name in row})
                raise ValueError(f"no run reports {plan.objective}, but {', '.join(names)}")
        elif status not in _STOPPED:
            return None, reason
    if math.isnan(value):
        return None, f"{plan.objective} is NaN at step {until:,}"
    _take_snapshot(run, until)
    return value, ""


def _run_process(
    lineage: Lineage, run: Path, until: int, plan: Plan, report: Report
) -> tuple[int | None, str]:
    """Run a training process, reporting its metrics; returns its exit status and why it failed."""
    log = run.parent / "logs" / f"{run.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    tail = Tail(run / METRICS)
    tail.rows()
    place = Place()
    while (claim := place.claim(str(log))).log_start is None:
        report("waits")
        time.sleep(_BEAT)
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(claim.gpus)}
    place.launch(
        [*plan.keeper, *plan.command(lineage, run, until=until)],
        environment={**plan.environment, **gpus},
        directory=plan.working_directory,
    )
    status: int | None = None
    try:
        report("runs")
        while status is None:
            status = place.wait(_BEAT)
            if rows := tail.rows():
                report("runs", row={name: value for row in rows for name, value in row.items()})
    finally:
        if status is None:  # Ray stops the member
            place.send(signal.SIGTERM)
    return status, failure_reason(log, start=claim.log_start, status=status) if status else ""
