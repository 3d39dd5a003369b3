"""The command `python speedrun.py`: a chain of ordinary runs, from text to a model that answers.

Each stage is a command that could be typed. A stage that ended is not run again, and one that was
stopped goes on, when the same command is given once more.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fidgpt.cli import app
from fidgpt.errors import ConfigError

if TYPE_CHECKING:
    from fidgpt.train import Trainer

FLAGS = argparse.Namespace()  # of the command, which shares names of flags with its stages

_DEEPEST = 100  # layers, of 6,400 channels
_ENDED = "stages.json"
_CHAT_TASKS = ("arc_easy", "arc_challenge", "mmlu", "gsm8k")


@dataclass(frozen=True)
class Stage:
    """A command of the chain.

    Attributes:
      name: of the stage.
      command: its words.
      config: whose run it is; none if it trains nothing.
    """

    name: str
    command: Sequence[str]
    config: Sequence[str] = ()


def run() -> None:
    """Entry point of the command."""
    app.FLAGS.mark_as_parsed()  # flags of the commands that the page uses, which have defaults
    sys.exit(app.call(main, sys.argv[1:]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="speedrun.py", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--depth", type=int, default=20, help="layers of the model, which decide on all sizes")
    add("--hardware", help="a machine such as h100x8; defaults to this one")
    add(
        "--run_dir",
        type=os.path.expanduser,
        help="folder of the stages; defaults to runs/speedrun-DEPTH",
    )
    add("--text", help="a text or folder; defaults to ClimbMix, or what Python ships")
    add("--talk", help="conversations; defaults to SmolTalk, or Python's docstrings")
    add("--tasks", type=lambda text: text.split(","), help="scores; on a GPU core, then chats")
    add("--data", help="as of fidgpt.evaluate: rows of the tasks")
    add("--price", type=float, default=3.0, help="of a GPU and an hour")
    add("--print", action="store_true", help="print the stages, what they cost, and their commands")
    add("--slurm", action="store_true", help="submit each stage to Slurm, after the one before")
    add("--only", help="run this stage alone")
    return parser


def main(arguments: list[str]) -> int:
    """Run the stages that are left, and write `report.html`; return the status.

    Raises:
      ConfigError: a flag has no such value.
    """
    from fidgpt.cli.speedrun_page import write_page
    from fidgpt.files import write_whole
    from fidgpt.train.device import machine_name

    _parser().parse_args(arguments, FLAGS)
    if not 1 <= FLAGS.depth <= _DEEPEST:
        raise ConfigError(f"--depth={FLAGS.depth} must be from 1 to {_DEEPEST}.")
    machine = FLAGS.hardware or machine_name()
    folder = Path(FLAGS.run_dir or f"runs/speedrun-{FLAGS.depth}")
    stages = _stages(folder, machine)
    if FLAGS.only not in (None, *(names := [stage.name for stage in stages])):
        raise ConfigError(f"--only={FLAGS.only} is none of {', '.join(names)}.")
    if FLAGS.print:
        print("\n".join(_plan(stages, machine)))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    if FLAGS.slurm:
        return _submit(stages, gpus=_gpus(machine), log=folder / "slurm-%j.log")
    for stage in stages:
        if FLAGS.only in (None, stage.name) and stage.name not in _ended(folder):
            print(f"== {stage.name}: {shlex.join(stage.command)}", flush=True)
            begun = time.monotonic()
            if status := subprocess.run(stage.command, check=False).returncode:
                return status
            seconds = {**_ended(folder), stage.name: time.monotonic() - begun}
            write_whole(folder / _ENDED, json.dumps(seconds, indent=2) + "\n")
    if {stage.name for stage in stages} <= _ended(folder).keys():
        page = write_page(folder, _ended(folder), price=_gpus(machine) * FLAGS.price)
        print(f"{page} shows scores, samples, curves and hours.")
    return 0


def _ended(folder: Path) -> dict[str, float]:
    """Return the stages that ended, and their seconds."""
    path = folder / _ENDED
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _gpus(machine: str) -> int:
    number = machine.rpartition("x")[2]
    if not number.isdigit():
        raise ConfigError(f"--hardware={machine} is no device and number of them, as h100x8.")
    return 0 if machine.startswith("cpu") else int(number)


def _stages(folder: Path, machine: str) -> list[Stage]:
    """Return the commands, in their order."""
    is_cpu, python = not _gpus(machine), [sys.executable, "-m"]
    ranks = ["fidgpt.launch", f"--nproc-per-node={_gpus(machine)}", "-m"]
    python_on_all = [*python, *([] if is_cpu else ranks)]
    text, talk = FLAGS.text, FLAGS.talk or str(folder / "talk.jsonl")
    changes = [] if text or is_cpu else ["fiddler:use_hub_text(climbmix)"]
    changes = [f"fiddler:use_text({text})"] if text else changes
    talks = f"fiddler:use_conversations(path={talk})"
    if not FLAGS.talk and not is_cpu:
        talks = "fiddler:use_hub_conversations(path=HuggingFaceTB/smoltalk, name=all)"
    if is_cpu:  # minutes in place of weeks
        sizes = "head_dim=64, seq_len=256, vocab_size=2048, tokens_per_parameter=0.5"
        changes += ["set:batch_size=8"]
        more = ["set:num_steps=120", "set:batch_size=8"]
    else:
        sizes, more = "tokens_per_parameter=8", [f"fiddler:for_hardware({machine})"]
        changes += more
    model = f"config:nanochat(depth={FLAGS.depth}, {sizes})"
    pretraining = [model, *changes, "fiddler:use_chat_template(nanochat)"]
    tuning = [f"config:chat(base={folder / 'pretrained'})", talks, *more]
    tasks = FLAGS.tasks if FLAGS.tasks is not None else [] if is_cpu else ["core"]
    stages = [
        Stage("text", [*python, "fidgpt.cli.train", *_config(pretraining), "--print=batch"]),
        *_trained("pretrained", pretraining, folder, python_on_all, tasks),
    ]
    if is_cpu and not FLAGS.talk:
        stages.append(Stage("talk", [*python, "fidgpt.data.docstrings", talk]))
    chat_tasks = FLAGS.tasks if FLAGS.tasks is not None else [] if is_cpu else _CHAT_TASKS
    return [*stages, *_trained("sft", tuning, folder, python_on_all, chat_tasks)]


def _trained(
    name: str, config: Sequence[str], folder: Path, python: Sequence[str], tasks: Sequence[str]
) -> list[Stage]:
    """Return the stages of a run and of its scores."""
    out, flags = folder / name, _config(config)
    train = [*python, "fidgpt.cli.train", "--auto_resume", *flags, f"--run_dir={out}"]
    stages = [Stage(name, train, config)]
    if tasks:
        asked = [f"--tasks={','.join(tasks)}", *([f"--data={FLAGS.data}"] if FLAGS.data else [])]
        words = [*python, "fidgpt.evaluate", str(out), *asked]
        stages.append(Stage(f"{name} scores", [*words, f"--out={folder / f'{name}.json'}"]))
    return stages


def _config(directives: Sequence[str]) -> list[str]:
    return [f"--config={directive}" for directive in directives]


def _plan(stages: Sequence[Stage], machine: str) -> list[str]:
    """Return lines with what each run takes, and its command."""
    lines, total = [], 0.0
    for stage in stages:
        cost = ""
        if stage.config and not stage.config[0].startswith("config:chat"):
            hours, tokens, parameters = _cost(stage.config, machine)
            total += hours
            cost = f"{parameters / 1e6:,.1f} M parameters, {tokens / 1e6:,.1f} M tokens, "
            cost += f"about {hours:,.2f} h"
        lines.append(f"{stage.name:18}  {cost}".rstrip())
        lines.append(f"    {shlex.join(stage.command)}")
    price = total * _gpus(machine) * FLAGS.price
    priced = f" and {price:,.0f} $" if price else ""  # a machine without GPUs has no price
    lines.append(f"pre-training alone takes about {total:,.2f} h{priced}")
    return lines


def _cost(config: Sequence[str], machine: str) -> tuple[float, int, int]:
    """Return hours, tokens and parameters of a run, whose model is built without memory."""
    from fidgpt.compose.composition import compose
    from fidgpt.runs.building import build_trainer
    from fidgpt.train.device import machine_named
    from fidgpt.train.estimates.facts import facts_of

    trainer: Trainer = build_trainer(compose(list(config)).resolved)
    try:
        cluster = machine_named(machine, trainer.precision.dtype)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    facts = facts_of(trainer, cluster)
    return 24 * facts.plan.days, facts.tokens, facts.parameters.total


def _submit(stages: Sequence[Stage], *, gpus: int, log: Path) -> int:
    """Submit the stages to Slurm, each after the one before; return the status."""
    job, again = "", [word for word in sys.argv if word.lstrip("-") != "slurm"]
    for stage in stages:
        command = shlex.join([sys.executable, *again, f"--only={stage.name}"])
        words = ["sbatch", "--parsable", f"--job-name={stage.name}", f"--output={log}"]
        words += [f"--gres=gpu:{gpus}"] if gpus else []
        words += [f"--dependency=afterok:{job}"] if job else []
        answer = subprocess.run(
            [*words, f"--wrap={command}"], stdout=subprocess.PIPE, text=True, check=False
        )
        if answer.returncode:
            return answer.returncode
        job = answer.stdout.strip().partition(";")[0]
        print(f"{stage.name}: job {job}")
    return 0
