"""Runs: composed, checked and built."""

import json
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import fiddle as fdl
import torch

from fidgpt.compose.sources import load_told, recall
from fidgpt.compose.spelling import DEFAULT_CONFIG, split_directive
from fidgpt.compose.trial import patch, surroundings, try_model, try_optimizer
from fidgpt.configs import constraints as rules
from fidgpt.graph import ConfigError, build, diff, diff_text, dump, fingerprint, load
from fidgpt.graph.outlines import rows
from fidgpt.graph.permissions import allowed_changes
from fidgpt.graph.provenance import attributed_to, dump_provenance
from fidgpt.train import RunDirectory, RunError, Trainer
from fidgpt.train.run_directory import FLAGS_FILE


def allow_flags(allowed: Iterable[str]) -> list[str]:
    """The flags that tell a command of packages of the user's own."""
    return [f"--allow={package}" for package in allowed]


def train_command(directives: Iterable[str], *, allowed: Iterable[str] = ()) -> str:
    """The line that trains what directives make, in which packages are allowed."""
    said = [f"--config={directive}" for directive in directives]
    return shlex.join(["python", "train.py", *allow_flags(allowed), *said])


CONSTRAINTS = [vars(rules)[name] for name in rules.__all__]


def build_trainer(cfg: fdl.Config) -> Trainer:
    """Builds a graph without giving its tensors memory: any size takes seconds anywhere.

    Raises:
      ConfigError: the graph is wrong, or is no trainer's, or its model cannot read or start, or
        its optimizer cannot be made.
    """
    with torch.device("meta"):
        trainer = build(cfg, constraints=CONSTRAINTS)
    if not isinstance(trainer, Trainer):
        raise ConfigError(f"the config builds a {type(trainer).__name__}; a run needs a Trainer.")
    try_model(trainer)
    try_optimizer(trainer)
    return trainer


def load_run(path: Path, *, allowed: tuple[str, ...] = ()) -> fdl.Config:
    """The graph of a run, from its directory.

    Args:
      path: the directory.
      allowed: packages of the user's own whose callables the config may name.

    Raises:
      RunError: there is no run.
      ConfigError: its config cannot be read.
    """
    file = path / "config.json"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RunError(
            f"{path} holds no run: {file.name} cannot be read ({reason}).{_anew(path)}"
        ) from None
    try:
        with attributed_to(str(file)):
            cfg = load_told(text, source=str(file), allowed=allowed)
    except ConfigError as error:
        if _is_json_object(text):
            raise
        raise ConfigError(f"{error}{_anew(path)}") from None
    return recall(cfg, str(file))


def _is_json_object(text: str) -> bool:
    """Whether a text is one, which what a disk lost or turned hardly is."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _anew(path: Path) -> str:
    """How a run's config is made again, if it is known how it was made first."""
    command = path / "command.txt"
    if not command.is_file():
        return ""
    return (
        f"\n{command} is how the run was begun: its --config flags with --print=json print "
        "config.json anew, and the checkpoints do not need it."
    )


def new_run(
    cfg: fdl.Config,
    *,
    directives: Sequence[str],
    path: str | None,
    allowed: tuple[str, ...] = (),
    flags: Sequence[str] = (),
) -> RunDirectory:
    """The directory of a new run of `cfg`: as asked, or `runs/NAME-TIME` where one stands.

    It keeps, beside the numbers, what one needs to understand the run and to do it again.

    Args:
      cfg: the graph.
      directives: what made it.
      path: the directory; one of its own in `runs` unless said.
      allowed: packages of the user's own whose callables the config may name.
      flags: what every command about the run has to be told, such as `--allow=lab`.

    Raises:
      ConfigError: the config cannot be written to a file, or what is read from it is another.
    """
    environment = {"fingerprint": fingerprint(cfg)} | surroundings()
    changes = patch()
    texts = _texts_of(cfg, allowed, flags) | {
        "command.txt": shlex.join([sys.executable, *sys.argv]) + "\n",
        "environment.json": json.dumps(environment, indent=1) + "\n",
        **({"changes.patch": changes} if changes else {}),
    }
    named = f"{name_of_base(directives)}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(path) if path else _free(Path("runs") / named)
    return RunDirectory(directory, texts=texts, identity=_identity(cfg))


def resumed_run(
    path: Path,
    old: fdl.Config,
    cfg: fdl.Config,
    *,
    allowed: tuple[str, ...] = (),
    flags: Sequence[str] = (),
) -> RunDirectory:
    """The directory of a run that goes on with `cfg`, where it went by `old` so far.

    The rest is as for `new_run`.

    Raises:
      ConfigErrors: something differs that may not change while a run goes on.
      ConfigError: the new config cannot be written to a file and read again.
    """
    changes = [
        {"path": one.change.path, "change": one.change.detail, "kind": one.permission.name.lower()}
        for one in allowed_changes(old, cfg)
    ]
    texts = _texts_of(cfg, allowed, flags) if changes else {}
    return RunDirectory(path, texts=texts, changes=changes, identity=_identity(cfg))


def _texts_of(cfg: fdl.Config, allowed: tuple[str, ...], flags: Sequence[str]) -> dict[str, str]:
    """The files of a config, once it is certain that they can be read again."""
    text = dump(cfg)
    again = load(text, source="the config", allowed=allowed)
    if fingerprint(again) != fingerprint(cfg):
        lines = diff_text(diff(cfg, again)) or "in what no difference shows"
        raise ConfigError(f"the config is another one once it was saved and loaded:\n  {lines}")
    told = {FLAGS_FILE: "".join(f"{flag}\n" for flag in flags)} if flags else {}
    return {"config.json": text, "provenance.json": dump_provenance(cfg)} | told


def _identity(cfg: fdl.Config) -> dict[str, str]:
    """What every process of a run must have alike: a text for each value, by its path."""
    return {row.path: row.text for row in rows(cfg, defaults=True) if row.text}


def name_of_base(directives: Sequence[str]) -> str:
    """The name of the config that directives begin with, for the name of a directory."""
    kind, rest = split_directive(directives[0]) if directives else ("", "")
    if kind == "config_file":
        return Path(rest).resolve().parent.name or "config"
    return rest.partition("(")[0].strip() if kind == "config" else DEFAULT_CONFIG


def _free(path: Path) -> Path:
    """The path itself, or the first of path-2, path-3, ... that nobody took."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
