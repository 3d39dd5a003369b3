"""How every kind of mistake reads: one example of each, in a golden for a reviewer to read."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs, graph, optim, tags
from fidgpt.cli import sweep, train
from fidgpt.model import RoPE

from .conftest import Command

pytestmark = pytest.mark.slow

ON_THE_COMMAND_LINE = [
    ("a misspelt directive", ["--config=fidler:make_large"]),
    ("a directive in curly quotes", ["--config=“set:seed=1”"]),
    ("a directive without its kind", ["--config=make_large"]),
    ("an assignment without its kind", ["--config=num_steps=5"]),
    ("a config that there is not", ["--config=config:gpt2_medium"]),
    ("a fiddler taken for a config", ["--config=config:make_large"]),
    ("a second base", ["--config=set:seed=1", "--config=config:debug"]),
    ("a file that there is not", ["--config=config_file:runs/none/config.json"]),
    ("a misspelt fiddler", ["--config=fiddler:make_larg"]),
    ("a misspelt argument", ["--config=fiddler:use_gqa(num_heads=2)"]),
    ("an argument of the wrong type", ["--config=fiddler:use_gqa(two)"]),
    ("an argument too many", ["--config=fiddler:make_large(2)"]),
    ("an argument that is missing", ["--config=fiddler:use_text"]),
    ("a parenthesis that stays open", ["--config=fiddler:use_gqa(2"]),
    ("a comma too many", ["--config=fiddler:use_gqa(,2)"]),
    ("a fiddler without its part", ["--config=set:samples=None", "--config=fiddler:smoke_test"]),
    ("a fiddler that breaks", ["--config=set:model.blocks=[]", "--config=fiddler:unroll"]),
    ("a misspelt path", ["--config=set:model.hiden_dim=512"]),
    ("a path that goes on elsewhere", ["--config=set:hidden_dim=512"]),
    ("a path through a number", ["--config=set:model.hidden_dim.x=512"]),
    ("a path through nothing", ["--config=set:micro_batch_size.x=1"]),
    ("an entry that there is not", ["--config=set:model.blocks[4].dropout=0.1"]),
    ("a name that there is not", ["--config=set:evaluators['validaton'].every=5"]),
    ("an element of a tuple", ["--config=set:optimizer.betas[0]=0.8"]),
    ("what is no path", ["--config=set:model..hidden_dim=512"]),
    ("a value of the wrong type", ["--config=set:model.hidden_dim=wide"]),
    ("a number for a part", ["--config=set:model.norm=5"]),
    ("a name for a list of names", ["--config=set:samples.prompts=def"]),
    ("a sign after the equals sign", ["--config=tag:LearningRate=*0.5"]),
    ("a sign that there is not", ["--config=set:optimizer.lr/=2"]),
    ("a number with a letter", ["--config=fiddler:train_for(tokens=10B)"]),
    ("a share of what is there", ["--config=set:optimizer.lr*=10%"]),
    ("a number too small", ["--config=set:optimizer.lr=1e-400"]),
    ("a function of too few numbers", ["--config=set:num_steps=min({seed})"]),
    ("an item without its brackets", ["--config=set:trackers+=JSONLines"]),
    ("an item that does not fit", ["--config=set:trackers+=[JSONLine]"]),
    ("an entry that is there", ["--config=set:evaluators+={validation: Validation}"]),
    ("an item after the last", ["--config=set:trackers[2]=TensorBoard"]),
    ("an entry of a new name", ["--config=use:evaluators.more=Validation(data=HeldOut)"]),
    ("items to take away", ["--config=set:trackers-=[JSONLines]"]),
    ("a sign before a path", ["--config=set:+trackers=[JSONLines]"]),
    ("a misspelt tag", ["--config=tag:HidenDim=512"]),
    ("a tag that nothing carries", ["--config=tag:NumKVHeads=2"]),
    ("a tag without a value", ["--config=tag:HiddenDim"]),
    ("a class that there is not", ["--config=set::RMSNrm.eps=1e-6"]),
    ("a slice of nothing", ["--config=set:model.blocks[3:].dropout=0.1"]),
    ("a tag in a path that there is not", ["--config=set:model.@InitSd=0.01"]),
    ("a factor that leaves no whole number", ["--config=tag:HiddenDim*=1.3"]),
    ("a factor of what is no number", ["--config=set:loss*=2"]),
    ("a reference to nothing", ["--config=set:num_steps={num_stps} * 2"]),
    ("a formula that leaves no whole number", ["--config=set:seed={num_steps} / 7"]),
    ("a number computed from itself", ["--config=set:num_steps={num_steps} + 1"]),
    ("two from each other", ["--config=set:seed={num_steps}", "--config=set:num_steps={seed}"]),
    ("a tag that a formula cannot inherit", ["--config=set:num_steps={HiddenDim}"]),
    ("what is no arithmetic", ["--config=set:num_steps=len({seed})"]),
    ("a part that there is not", ["--config=set:model.norm=RMSNrm()"]),
    ("a misspelt argument of a part", ["--config=set:model.norm=RMSNorm(epps=1e-6)"]),
    ("a name that two parts have", ["--config=use:schedule=Constant"]),
    ("a part that does not fit", ["--config=use:model.norm=adamw"]),
    ("a function that is no part", ["--config=use:loss=torch.load"]),
    ("a package that has no parts", ["--config=use:loss=numpy.load"]),
    ("a factory that lacks arguments", ["--config=set:model.blocks=[Block]"]),
    ("a value in place of a part", ["--config=use:samples=None"]),
    ("a part for a number", ["--config=use:seed=RMSNorm"]),
    ("a tie to a number", ["--config=tie:model.norm=model.hidden_dim"]),
    ("a tie to what is made for every call", ["--config=tie:model.norm=model.blocks[0].mlp_norm"]),
    ("nothing to untie", ["--config=untie:model.norm"]),
    ("an item of a list to delete", ["--config=del:trackers[0]"]),
    ("a module that there is not", ["--config=fiddler:lab.changes.deeper"]),
    ("a function of Python's own", ["--config=fiddler:subprocess.run"]),
    ("a patch that there is not", ["--config=patch:wider.patch"]),
    ("a text that is no config", ["--config=config_str:{}"]),
    ("a text that is empty", ["--config=config_str:"]),
    ("a size that does not fit another", ["--config=set:model.hidden_dim=500"]),
    ("a number out of its range", ["--config=set:optimizer.betas=(0.9, 1.5)"]),
    ("a dropout of everything", ["--config=tag:Dropout=1"]),
    ("a number that torch refuses", ["--config=fiddler:use_sgd", "--config=set:optimizer.lr=-1"]),
    ("a flag of Fiddle's", ["--fiddler=make_large"]),
    ("a misspelt flag", ["--confg=config:debug"]),
    ("a misspelt word", ["make_lage"]),
    ("a run that there is not", ["--resume=runs/none"]),
    ("a run and a change", ["--resume=runs/none", "--config=set:seed=1"]),
]

IN_A_SWEEP = [
    ("no axis", []),
    ("an axis without values", ["--sweep=tag:LearningRate"]),
    ("two points of which one cannot be", ["--sweep=set:model.hidden_dim=32,33,x"]),
]


def unset(cfg: Any) -> Any:
    cfg.model.norm = fdl.Config(RoPE, head_dim=tags.HeadDim.new(), theta=1e4)
    return graph.bind(cfg)


def set_twice(cfg: Any) -> Any:
    teacher = graph.clone(cfg.model)
    teacher.hidden_dim = 64
    teacher.norm = cfg.model.norm
    cfg.samples = [teacher]
    return graph.bind(cfg)


def set_twice_by_one(cfg: Any) -> Any:
    fdl.add_tag(cfg.model, "dropout", tags.HiddenDim)
    return graph.bind(cfg)


def an_optimizer_as_attention(cfg: Any) -> Any:
    cfg.model.blocks[0].attention = fdl.ArgFactory(optim.adamw, lr=0.1)
    return graph.check(cfg)


def a_constructor_that_refuses(cfg: Any) -> Any:
    cfg.model.blocks[0].attention.head_dim = 15
    return graph.build(cfg)


def a_value_without_a_form(cfg: Any) -> Any:
    cfg.samples.prompts = {"def "}
    return graph.dump(cfg)


def a_function_without_a_name(cfg: Any) -> Any:
    cfg.groups = lambda model: []
    return graph.dump(cfg)


def changed(cfg: Any, old: str, new: str) -> Any:
    text = graph.dump(cfg)
    assert old in text
    return graph.load(text.replace(old, new, 1), source="run/config.json")


LOSS = "fidgpt.train"
IN_A_FILE = {
    "a file that names what it may not": (f"{LOSS}:CrossEntropy", "subprocess:run"),
    "a file that names what is not exported": (f"{LOSS}:Cross", f"{LOSS}:Cros"),
    "a file of another version": ('"version": 1', '"version": 2'),
    "a file with another parameter": ('"num_layers": 2', '"num_layer": 2'),
    "a file that is cut": ('"format"', "format"),
    "a file with a value of no kind": ('"seed": 0', '"seed": {"call": "os"}'),
    "a file with a part too many": ('"loss": {"part": "loss"},', ""),
}

IN_PYTHON = [
    unset,
    set_twice,
    set_twice_by_one,
    an_optimizer_as_attention,
    a_constructor_that_refuses,
    a_value_without_a_form,
    a_function_without_a_name,
]


def test_messages(
    command: Command,
    golden: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []

    def add(what: str, message: str) -> None:
        lines.extend([f"## {what}", "", message.rstrip("\n"), ""])

    for what, flags in ON_THE_COMMAND_LINE:
        status, out, err = command(train.main, *flags, "--dry_run")
        assert (status, out) == (2, ""), what
        add(what, " ".join(["$ train.py", *map(shell, flags)]) + "\n" + err)
    for what, flags in IN_A_SWEEP:
        err = command(sweep.main, "--config=config:debug", *flags).err
        add(what, " ".join(["$ sweep.py --config=config:debug", *flags]) + "\n" + err)
    for mistake in IN_PYTHON:
        with pytest.raises(graph.ConfigError) as caught:
            mistake(configs.debug())
        add(mistake.__name__.replace("_", " "), str(caught.value))
    for what, (old, new) in IN_A_FILE.items():
        with pytest.raises(graph.ConfigError) as caught:
            changed(configs.debug(), old, new)
        add(what, str(caught.value))
    several = r"such as .*, \w+ and \d+ more"  # which every new component changes
    golden("messages", re.sub(several, "such as A, B, C and N more", "\n".join(lines)))


def shell(flag: str) -> str:
    """A flag as one would type it."""
    return json.dumps(flag) if set(flag) & set("()[]{}'*, ") else flag
