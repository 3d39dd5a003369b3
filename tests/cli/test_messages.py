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

BLOCK, MOE = "use:model.blocks[0]", "--config=fiddler:use_moe"
TOKENIZER = "use:data.corpus.tokenizer"
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
    ("a kind alone", ["--config=set"]),
    ("a sign for a part", ["--config=use:model.norm*=2"]),
    ("a number as a part", ["--config=use:schedule=4"]),
    ("a sign before a number", ["--config=set:seed=/ 2"]),
    ("an item to delete that there is not", ["--config=del:trackers[9]"]),
    ("a directive of nothing", ["--config="]),
    ("a number without digits", ["--config=set:seed*="]),
    ("a product too large", ["--config=set:optimizer.lr*=1e308*10"]),
    ("an argument of a part of the wrong type", ["--config=set:model.norm=RMSNorm(eps=x)"]),
    ("arguments of a part too many", ["--config=set:model.norm=RMSNorm(1, 2, 3)"]),
    ("a tie of what lies inside", ["--config=tie:model.norm=model"]),
    ("a tie of a number", ["--config=tie:seed=model.norm"]),
    ("a number to untie", ["--config=untie:seed"]),
    ("items for a dict", ["--config=set:evaluators+=[b]"]),
    ("an item for a pair", ["--config=set:optimizer.betas+=[0.5]"]),
    ("an entry for nothing", ["--config=set:micro_batch_size+={b: 1}"]),
    ("a factor of a list", ["--config=set:samples.prompts*=2"]),
    ("entries of a number", ["--config=set:seed[*]=1"]),
    ("a tag that is elsewhere", ["--config=set:model.@NumSteps=1"]),
    ("a division by zero", ["--config=set:num_steps=8 / {seed}"]),
    ("a power too large", ["--config=set:num_steps=9 ** {seq_len} ** 9"]),
    ("a part in a formula", ["--config=set:num_steps={model}"]),
    ("a misspelt tag in a formula", ["--config=set:num_steps={@NumStps} * 2"]),
    ("a formula without an end", ["--config=set:num_steps={seed} *"]),
    ("a space in a path", ["--config=set:num_steps={se ed}"]),
    ("no blocks", ["--config=set:seed=3", "--config=set:model.blocks=[]"]),
    ("a rate that is not finite", ["--config=set:optimizer.lr=inf"]),
    ("an optimizer without its groups", ["--config=use:optimizer=Muon"]),
    ("a text that there is not", ["--config=fiddler:use_text(path=/nowhere.txt)"]),
    ("a text at a URL", ['--config=fiddler:use_text(path="https://a.b/c.txt")']),
    ("a text in a store of no package", ["--config=fiddler:use_text(none://bucket/text)"]),
    ("a template that there is not", ["--config=fiddler:use_chat_template(none.jinja)"]),
    ("a mirror of no package", ["--config=fiddler:mirror_checkpoints(none://bucket)"]),
    ("weights that are not there", ["--config=fiddler:initialize_from(nowhere)"]),
    ("a tokenizer that there is not", [f"--config={TOKENIZER}=TokenizerFile(path=/none.json)"]),
    ("a function that would read", ['--config=set:samples=load_tokenizer("/dev/zero")']),
    ("a variable that is not set", ["--config=set:num_steps=${env:UNSET_NUM}"]),
    ("a secret without a name", ["--config=set:run_name=${secret:}"]),
    ("a secret with a default", ["--config=set:run_name=${secret:A,d}"]),
    ("attention as an MLP", [f"--config={BLOCK}.mlp=Attention(head_dim=16)"]),
    ("a norm as an MLP", [f"--config={BLOCK}.mlp=RMSNorm"]),
    ("a block as a norm", [f"--config={BLOCK}.mlp_norm=Block"]),
    ("an MLP as a norm of queries", [f"--config={BLOCK}.attention.query_norm=SwiGLU"]),
    ("a mixture as attention", [f"--config={BLOCK}.attention=MoE"]),
    ("a norm as a matrix", [f"--config={BLOCK}.attention.linear=RMSNorm"]),
    ("a norm as a gate", [f"--config={BLOCK}.attention.output_gate=RMSNorm"]),
    ("a norm as a block", [f"--config={BLOCK}=RMSNorm"]),
    ("windows in every -1st layer", ["--config=fiddler:use_sliding_window(every=-1)"]),
    ("a depth times 0", ["--config=fiddler:scale_depth(factor=0)"]),
    ("mixtures in every 0th layer", ["--config=fiddler:use_moe(every=0)"]),
    ("no predictions", ["--config=fiddler:use_mtp(num_tokens=0)"]),
    ("more experts than there are", ["--config=fiddler:use_moe(num_experts=2, top_k=3)"]),
    ("groups of unequal size", [MOE, "--config=fiddler:use_expert_groups(num_groups=3)"]),
    ("no capacity", [MOE, "--config=fiddler:use_expert_capacity(factor=0)"]),
    ("other experts", [MOE, "--config=set:model.blocks[0].mlp.experts.num_experts=4"]),
    ("adapters without a rank", ["--config=fiddler:use_lora(rank=0)"]),
    ("a misspelt part to freeze", ["--config=fiddler:freeze(model.embeding)"]),
    ("a whole model to freeze", ["--config=fiddler:freeze(model)"]),
    ("a part without parameters to freeze", ["--config=fiddler:freeze(model.blocks[0].dropout)"]),
    ("no processes", ["--config=fiddler:use_mesh(tensor=0)"]),
    ("two axes that take what is left", ["--config=fiddler:use_mesh(shard=-1, tensor=-1)"]),
    ("experts that take what is left", ["--config=fiddler:use_mesh(shard=2, expert=-1)"]),
    ("a batch too small for a mesh", ["--config=fiddler:use_mesh(shard=16)"]),
    ("heads that cannot be split", ["--config=fiddler:use_mesh(tensor=3)"]),
    ("processes without a head", ["--config=fiddler:use_mesh(tensor=8)"]),
    ("a mesh of experts without any", ["--config=fiddler:use_mesh(shard=2, expert=2)"]),
    ("experts that cannot be shared", [MOE, "--config=fiddler:use_mesh(shard=3, expert=3)"]),
    ("processes that experts do not divide", [MOE, "--config=fiddler:use_mesh(shard=4, expert=3)"]),
    ("tokens and a ratio", ["--config=fiddler:train_for(tokens=5, tokens_per_parameter=20)"]),
    ("no tokens", ["--config=fiddler:train_for(tokens_per_parameter=0)"]),
    ("a config as a flag", ["--model.hidden_dim=5"]),
    ("a step that is no number", ["--resume_step=x"]),
    ("a form that there is not", ["--print=toml"]),
    ("a form of no difference", ["--diff_form=patch"]),
    ("a price of no plan", ["--price=2"]),
    ("a step of no run", ["--resume_step=5"]),
    ("a copy that there is not", ["--resume=x", "--run_dir=y"]),
    ("a copy in no store", ["--resume=nowhere://x", "--run_dir=again"]),
    ("a misspelt config to compare with", ["--diff=debgu"]),
    ("a misspelt list", ["--list=confgs"]),
    ("a list of parts of nothing", ["--list=parts:model.nrm"]),
    ("a name of a module", ["lab.tiny"]),
    ("names of two kinds", ["base,make_large"]),
]

IN_A_SWEEP = [
    ("no axis", []),
    ("an axis without values", ["--sweep=tag:LearningRate"]),
    ("two points of which one cannot be", ["--sweep=set:model.hidden_dim=32,33,x"]),
    ("many points that cannot be", ["--sweep=set:model.hidden_dim=range(33,73)"]),
    ("many values of a misspelt path", ["--sweep=set:model.hidden_dm=1..39"]),
    ("many values of the wrong type", ["--sweep=tag:LearningRate=1e-3,x,y,z,w,v"]),
    ("a range without values", ["--sweep=set:num_steps=lin(1,2)"]),
    ("a pair with a wrong value", ["--zip=set:seq_len=64,128;tag:LearningRate=3e-3,a"]),
    ("a misspelt repetition", ["--repeat=sed:9"]),
    ("too many points", ["--sweep=set:seed=range(0,200)", "--sweep=set:num_steps=range(1,101)"]),
    ("a misspelt ablation", ["--ablate=fiddler:use_gqa,use_mo"]),
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
    "a file with a part too many": ('"loss": {\n     "part": "loss"\n    },', ""),
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
    text = "\n".join(lines).replace(str(tmp_path), "HERE")
    several = r"such as .*, \w+ and \d+ more"  # which every new component changes
    golden("messages", re.sub(several, "such as A, B, C and N more", text))


def shell(flag: str) -> str:
    """A flag as one would type it."""
    return json.dumps(flag) if set(flag) & set("()[]{}'*, ") else flag
