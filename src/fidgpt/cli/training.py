"""What `train.py` does: composes a config, and starts, tries or resumes a run of it."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import fiddle as fdl

from fidgpt import heap
from fidgpt.cli.flags import FLAGS
from fidgpt.cli.show import echo, is_main, naming_directives, reported, warn
from fidgpt.compose import directives, report, reproduction
from fidgpt.compose.catalogue import Catalogue, own_catalogue
from fidgpt.compose.composition import Composition
from fidgpt.errors import raise_all
from fidgpt.graph import ConfigError, Resolved, fingerprint
from fidgpt.processes.ranks import RanksError
from fidgpt.runs import ineffective, shrinking, tuning
from fidgpt.runs.building import build_trainer, constraints_of, require_consent, require_present
from fidgpt.runs.directories import is_as_begun, load_run, new_run, resumed_run
from fidgpt.train import Mirror, Trainer, device, mesh_check
from fidgpt.train.checks import preflight
from fidgpt.train.estimates.facts import check_resumable, facts_of
from fidgpt.train.estimates.tuning import Choice

_MANY_TOKENS = 1 << 22  # at once
_OF_A_MACHINE = ("summary", "plan", "plan-html")  # forms of --print


def prepared() -> tuple[Catalogue, fdl.Config | None]:
    """Return the names that directives may use, and the config of the run to resume.

    Raises:
      ConfigError: flags contradict each other, or there is no such run.
    """
    raise_all(list(_contradictions()))
    _pretend_machine()
    catalogue = own_catalogue(tuple(FLAGS.allow))
    return catalogue, _resumed(catalogue) if FLAGS.resume else None


def other_errors(composition: Composition) -> list[str]:
    """Return further errors, where a directive is wrong."""
    constraints = constraints_of(composition.catalogue)
    return report.other_errors(composition, constraints=constraints, allow_noop=FLAGS.allow_noop)


def run(composition: Composition, old: fdl.Config | None) -> int | None:
    """Train what the directives made, or resume the run that had the config `old`."""
    heap.use_fast_memory()
    with naming_directives(composition):
        trainer = build_trainer(composition.resolved, composition.catalogue)
        _require_consent(composition.resolved, is_loaded=old is not None)
    changes, warnings = reported(composition)
    echo(changes)
    idle = ineffective.without_effect(composition)
    warn([*warnings, *idle, *_unreached_stop(composition.config)])
    may_tune = old is None and not FLAGS.dry_run and _may_fit(trainer)
    if may_tune and (choice := tuning.choose(composition, trainer, renew=FLAGS.measure)):
        echo([f"tuning: {choice.reason}"])
        composition, trainer = _tuned(composition, trainer, choice)
    with naming_directives(composition):
        allowed, own = composition.catalogue.packages, reproduction.allow_flags(FLAGS.allow)
        if old is None:
            directory = new_run(
                composition.resolved,
                directives=FLAGS.config,
                path=FLAGS.run_dir,
                allowed=allowed,
                flags=own,
            )
        else:
            path = Path(FLAGS.run_dir or FLAGS.resume)
            directory = resumed_run(path, old, composition.resolved, allowed=allowed, flags=own)
    resume = old is not None
    if not FLAGS.dry_run:
        outcome = trainer.train(
            directory, resume=resume, resume_step=FLAGS.resume_step, until_step=FLAGS.until_step
        )
        return 128 + outcome.stopped_by if outcome.stopped_by else 0  # as a shell does for signals
    require_present(composition.resolved, trainer)
    preflight.check_components(trainer)
    if resume:
        check_resumable(trainer, directory, step=FLAGS.resume_step)
    from rich.console import Console  # late: a run without a terminal needs none of it

    from fidgpt.train.estimates.summary_text import facts_table

    facts = facts_of(trainer)
    if is_main():
        Console(highlight=False).print(facts_table(directory, facts, step=0))
    if line := device.lack_of_memory(facts.plan):
        warn([f"{line} {device.TRAIN_WITH_LESS}"])
    return None


def check_parallel(composition: Composition) -> int:
    """Compare a step of a small copy on its mesh with one process; return the exit status.

    Raises:
      ConfigError: the mesh is a single process, or its processes fail.
    """
    with naming_directives(composition):
        whole = shrinking.mesh_of(
            build_trainer(composition.resolved, composition.catalogue).parallel
        )
    if whole.size == 1:
        raise ConfigError(
            "--check_parallel compares a mesh with one process, and this mesh is one process: add "
            "--config='fiddler:use_mesh(shard=2, tensor=2)', for example."
        )
    mesh = shrinking.shrink_mesh(whole)
    small, left = shrinking.shrink(composition.config, mesh=mesh, build=build_trainer)
    print(f"One step of a small copy of this config, with {mesh}, in {mesh.size} processes.")
    if mesh != whole:
        print(f"They stand for {whole}: more than {shrinking.MOST_PROCESSES} are too many here.")
    if left:
        print(f"As large as in the run, or the config does not build: {', '.join(left)}.")
    print(flush=True)  # before processes are forked, which would print it too
    alone, shared = build_trainer(small), build_trainer(small)
    try:
        comparison = mesh_check.check_mesh(alone, shared, num_processes=mesh.size)
    except RanksError as error:
        raise ConfigError(_failure_on_a_mesh(error)) from error
    print(mesh_check.comparison_text(comparison), end="")
    return int(bool(comparison.bad))


def _failure_on_a_mesh(error: RanksError) -> str:
    """Return what failed on a mesh and where, without the traceback of a process."""
    whole = str(error).strip()
    text = whole.removesuffix(f"\n{mesh_check.ALONE}")
    places = [line.strip() for line in text.splitlines() if line.startswith("  File ")]
    places = [place for place in places if f"{os.sep}torch{os.sep}" not in place]
    if not places:
        return text
    message = text.rpartition("\n    ")[2].partition("\n")[2]  # behind the last line of code
    failure = "the mesh cannot compute the step that one process computes"
    if text != whole:
        failure = "one process cannot compute the step, on any mesh"
    return f"{failure}: {message:.300}\n  {places[-1]}\n  --debug shows the whole error."


def _may_fit(trainer: Trainer) -> bool:
    """Whether a run is not refused for its memory: of a common size, it need not be estimated."""
    rows = min(trainer.micro_batch_size or trainer.batch_size, trainer.batch_size)
    if rows * trainer.seq_len < _MANY_TOKENS:
        return True
    return device.lack_of_memory(facts_of(trainer).plan) is None


def _tuned(
    composition: Composition, trainer: Trainer, choice: Choice
) -> tuple[Composition, Trainer]:
    composition = tuning.tuned(composition, choice)
    if choice.compiles or choice.kernel is not None:
        return composition, build_trainer(composition.resolved, composition.catalogue)
    trainer.precision = choice.precision
    return composition, trainer


def _require_consent(cfg: fdl.Config | Resolved, *, is_loaded: bool) -> None:
    """Print where a config that was loaded from a file sends what it makes, before it does.

    Raises:
      ConfigError: it names a place that needs the user's consent first.
    """
    words = [*FLAGS.config, FLAGS.resume or "", FLAGS.run_dir or ""]
    kinds = map(directives.kind_of, FLAGS.config)
    is_loaded = is_loaded or any(kind is not None and not kind.portable for kind in kinds)
    echo(require_consent(cfg, words=words, is_loaded=is_loaded))


def _pretend_machine() -> None:
    """Let for_hardware see the machine of --hardware in place of the one at hand."""
    if FLAGS.hardware is None:
        return
    if not any(map(directives.is_by_machine, FLAGS.config)) and FLAGS.print not in _OF_A_MACHINE:
        raise ConfigError(
            f"--hardware={FLAGS.hardware} changes nothing, because no directive asks for the "
            "machine: add --config=fiddler:for_hardware."
        )
    os.environ[device.VARIABLE] = FLAGS.hardware.lower()


def _resumed(catalogue: Catalogue) -> fdl.Config:
    """Return the graph of the run of --resume, restored into --run_dir if that is a copy.

    Raises:
      RunError, ConfigError: there is no such run, or its config cannot be read.
      CheckpointError: there is no copy, or it cannot be read.
    """
    if FLAGS.run_dir:
        if (Path(FLAGS.resume) / "config.json").exists():
            raise ConfigError(
                f"--resume={FLAGS.resume} resumes in the directory of the run: remove --run_dir."
            )
        try:
            mirror = Mirror(FLAGS.resume)
        except ValueError as error:
            raise ConfigError(
                f"--resume={FLAGS.resume} holds no run, and is no copy of one: {error}"
            ) from None
        mirror.restore_run(Path(FLAGS.run_dir))
    path = Path(FLAGS.run_dir or FLAGS.resume)
    cfg = load_run(path, allowed=catalogue.packages)
    if not is_as_begun(path, cfg):
        warn(
            [
                f"{path / 'config.json'} is not the config that the run began with: it, or a "
                "constructor that it names, was edited, and the run continues with what it holds."
            ]
        )
    return cfg


def begun(cfg: fdl.Config, catalogue: Catalogue) -> fdl.Config | None:
    """Return the config of the run in --run_dir that is to be resumed; None if there is none.

    It is restored from its copies if it was lost.

    Raises:
      ConfigError: it is not the run that this command makes.
    """
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if not (FLAGS.auto_resume or restarted) or FLAGS.run_dir is None or FLAGS.resume:
        return None
    path = Path(FLAGS.run_dir)
    mirror = getattr(getattr(cfg, "checkpoints", None), "mirror", None)
    if not path.exists() and isinstance(mirror, fdl.Buildable):
        _require_consent(cfg, is_loaded=False)
        built = fdl.build(mirror)
        if isinstance(built, Mirror) and built.holds_run():
            built.restore_run(path)
    if not (path / "config.json").exists():
        return None
    old = load_run(path, allowed=catalogue.packages)
    if fingerprint(old) != fingerprint(tuning.tuned_alike(cfg, old)):
        differ = shlex.quote(f"--diff=config_file:{path}/config.json")
        raise ConfigError(
            f"{path} holds a run of another config: see how they differ with {differ}, then "
            f"resume it with {shlex.quote(f'--resume={path}')}, or name another --run_dir."
        )
    return old


def _unreached_stop(cfg: fdl.Buildable) -> Iterator[str]:
    """Yield a sentence if a run ends before --until_step."""
    num_steps = getattr(cfg, "num_steps", None)
    if FLAGS.until_step is not None and isinstance(num_steps, int) and FLAGS.until_step > num_steps:
        yield f"--until_step={FLAGS.until_step} is after the end of the run, at {num_steps=}."


def _contradictions() -> Iterator[str]:
    """Yield an error for flags that make no sense together, before anything is loaded."""
    if "://" in (FLAGS.resume or "") and not FLAGS.run_dir:
        yield (
            f"--resume={FLAGS.resume} is a copy of a run: name with --run_dir the directory to "
            "restore it into."
        )
    if FLAGS.auto_resume and not FLAGS.run_dir:
        yield "--auto_resume resumes the run in --run_dir: name that directory."
    may_restart = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
    if may_restart and not (FLAGS.resume or FLAGS.run_dir):
        yield (
            "torchrun may restart this command, which must then find the same run: name its "
            "directory with --run_dir."
        )
    if FLAGS["diff_form"].present and FLAGS.diff is None:
        yield "--diff_form sets how --diff is shown: name with --diff what to compare."
    if FLAGS.price is not None and FLAGS.print != "plan":
        yield "--price is shown in a plan as text: it needs --print=plan."
    if FLAGS.check_parallel and "RANK" in os.environ:
        yield "--check_parallel starts its own processes: run it without torchrun."
    if FLAGS.resume_step is not None and not FLAGS.resume:
        yield "--resume_step sets where to resume: it needs --resume=RUN_DIRECTORY."
