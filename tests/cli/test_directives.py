"""Directives: what each does, in which order, and what a wrong one is told."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers
from fidgpt.compose.catalogue import Catalogue, own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.configs import base, debug
from fidgpt.data import TextFiles
from fidgpt.graph import ConfigError, dump, fingerprint, outline
from fidgpt.model import RoPE
from fidgpt.tags import HiddenDim, LearningRate

OWN = own_catalogue()


def composed(*directives: str, catalogue: Catalogue = OWN) -> Any:
    return compose(directives, catalogue).config


def refused(*directives: str, catalogue: Catalogue = OWN) -> list[str]:
    """The directive that is wrong, and which one it is; then the lines that say why."""
    with pytest.raises(ConfigError) as caught:
        compose(directives, catalogue)
    head, directive, carets, *why = str(caught.value).splitlines()
    assert set(carets) == {" ", "^"}
    assert len(why) <= 3
    return [f"{directive[2:]} ({head.removesuffix(' is wrong:')}):", *why]


def with_fiddlers(*functions: Any) -> Catalogue:
    own = {function.__name__: function for function in functions}
    return dataclasses.replace(OWN, fiddlers={**OWN.fiddlers, **own})


def test_the_catalogue_holds_what_the_modules_list() -> None:
    assert set(OWN.configs) == {*configs.__all__, "from_hf"}
    assert set(OWN.fiddlers) == set(fiddlers.__all__)
    assert OWN.tags["HiddenDim"] is HiddenDim
    assert "Tag" not in OWN.tags
    assert "fdl" not in OWN.tags


def test_without_a_base_it_is_base() -> None:
    assert fingerprint(composed()) == fingerprint(base())
    assert composed("set:num_steps=7").num_steps == 7
    assert fingerprint(composed("config:debug")) == fingerprint(debug())


def test_directives_apply_in_order() -> None:
    assert composed("set:num_steps=7", "tag:NumSteps=9").num_steps == 9
    assert composed("tag:NumSteps=9", "set:num_steps=7").num_steps == 7
    cfg = composed("fiddler:make_small", "set:model.hidden_dim=1024")
    assert (cfg.model.hidden_dim, cfg.model.num_layers) == (1024, 12)
    assert composed("set:model.hidden_dim=1024", "fiddler:make_small").model.hidden_dim == 768


def test_the_first_line_of_the_readme() -> None:
    cfg = composed("config:base", "fiddler:make_large", "set:model.hidden_dim=1024")
    fresh = base()
    fiddlers.make_large(fresh)
    fresh.model.hidden_dim = 1024
    assert fingerprint(cfg) == fingerprint(fresh)


def test_a_config_file_is_a_base(tmp_path: Path) -> None:
    path = tmp_path / "of mine.json"
    path.write_text(dump(composed("config:debug", "fiddler:use_gqa")), encoding="utf-8")
    cfg = composed(f"config_file:{path}", "set:model.hidden_dim=64")
    assert fingerprint(cfg) == fingerprint(
        composed("config:debug", "set:model.hidden_dim=64", "fiddler:use_gqa")
    )


def test_a_fiddler_gets_its_arguments() -> None:
    cfg = composed("fiddler:use_gqa(num_kv_heads=1)", "fiddler:use_text('/a, b/c.txt')")
    assert cfg.model.blocks[0].attention.num_kv_heads == 1
    assert fdl.get_callable(cfg.data.corpus.source) is TextFiles
    assert fdl.ordered_arguments(cfg.data.corpus.source)["path"] == "/a, b/c.txt"


def test_a_path_needs_no_quotes() -> None:
    cfg = composed("fiddler:use_text(/data/my text.jsonl, text_field=body)")
    assert "'/data/my text.jsonl'" in outline(cfg)
    assert cfg.data.corpus.source.text_field == "body"


@pytest.mark.parametrize(
    ("directive", "path", "value"),
    [
        ("set:num_steps=1e3", "num_steps", 1000),
        ("set:seed=-1", "seed", -1),
        ("set: num_steps = 5", "num_steps", 5),
        (" set:num_steps=5", "num_steps", 5),
        ("set:max_grad_norm=None", "max_grad_norm", None),
        ("set:micro_batch_size=4", "micro_batch_size", 4),
        ("set:optimizer.betas=0.9,0.99", "optimizer.betas", (0.9, 0.99)),
        ("set:samples.prompts=['x = ', 'import ']", "samples.prompts", ["x = ", "import "]),
        ("set:model.blocks[0].attention.head_dim=2**5", "model.blocks[0].attention.head_dim", 32),
        ("set:evaluators['validation'].every=50", "evaluators['validation'].every", 50),
        ("set:evaluators.validation.every=50", "evaluators['validation'].every", 50),
        ("set:samples=None", "samples", None),
        ("set:model.blocks[-1].mlp.hidden_dim=128", "model.blocks[0].mlp.hidden_dim", 128),
    ],
)
def test_set(directive: str, path: str, value: Any) -> None:
    found: Any = composed(directive)
    for step in path.replace("[", ".[").split("."):
        key = step.strip("[]'")
        if step.startswith("["):
            found = found[int(key) if key.isdigit() else key]
        else:
            found = getattr(found, key)
    assert found == value
    assert type(found) is type(value)


def test_tag_says_a_quantity_wherever_it_is_said() -> None:
    cfg = composed("tag:LearningRate=3e-4", "tag:HiddenDim=2**9")
    assert cfg.optimizer.lr == 3e-4
    assert cfg.model.hidden_dim == 512
    assert fdl.get_tags(cfg.optimizer, "lr") == {LearningRate}
    assert composed("tag:WarmupSteps=7").schedule.warmup_steps == 7


def test_what_was_composed_before_a_mistake_is_not_touched() -> None:
    graphs = []

    def remember(cfg: Any) -> None:
        graphs.append(cfg)

    def fail_half_way(cfg: Any) -> None:
        cfg.num_steps = 99
        cfg.model.blocks.append(1)
        raise ValueError("no")

    catalogue = with_fiddlers(remember, fail_half_way)
    before = fingerprint(composed("config:debug"))
    refused("config:debug", "fiddler:remember", "fiddler:fail_half_way", catalogue=catalogue)
    assert fingerprint(graphs[0]) == before


def test_a_fiddler_may_raise_return_or_fail() -> None:
    def returns(cfg: Any) -> Any:
        return cfg

    def fails(cfg: Any) -> None:
        cfg.model.no_such_part = 3

    def misses(cfg: Any) -> None:
        cfg.model.blocks[7].dropout = 0.1

    lines = refused("fiddler:returns", catalogue=with_fiddlers(returns))
    assert "returns returns Config, and a fiddler returns None" in lines[1]
    lines = refused("fiddler:fails", catalogue=with_fiddlers(fails))
    assert lines[1] == "  fails failed, so it may not suit this config."
    assert "AttributeError: No parameter named 'no_such_part'" in lines[2]
    lines = refused("fiddler:misses", catalogue=with_fiddlers(misses))
    assert "IndexError: list index out of range" in lines[2]


def test_a_fiddler_that_does_not_apply_is_named(tmp_path: Path) -> None:
    lines = refused("fiddler:use_gelu", "set:model.blocks=[]", "fiddler:use_swiglu")
    assert lines[0] == "--config=fiddler:use_swiglu (directive 3):"
    assert "holds no Block" in lines[1]


def test_a_config_that_is_none() -> None:
    def built() -> Any:
        return 5

    def broken() -> Any:
        raise KeyError("x")

    for function, text in ((built, "returns int"), (broken, "KeyError: 'x'")):
        catalogue = dataclasses.replace(OWN, configs={"base": base, "wrong": function})
        assert text in "\n".join(refused("config:wrong", catalogue=catalogue))


def test_configs_and_fiddlers_may_take_names_only() -> None:
    def sized(*, width: int = 3) -> Any:
        cfg = debug()
        cfg.model.hidden_dim = width
        return cfg

    catalogue = dataclasses.replace(OWN, configs={"base": base, "sized": sized})
    assert composed("config:sized(width=48)", catalogue=catalogue).model.hidden_dim == 48
    assert composed("config:sized(64)", catalogue=catalogue).model.hidden_dim == 64


@pytest.mark.parametrize(
    ("directives", "message"),
    [
        (
            [""],
            "there is no directive ''. There are config, config_file, config_str, del, fiddler, ",
        ),
        (["   "], "there is no directive ''."),
        (["num_steps=5"], "a directive begins with its kind: set:num_steps=5"),
        (["make_large"], "a directive begins with its kind: fiddler:make_large"),
        (["use_gqa(2)"], "a directive begins with its kind: fiddler:use_gqa(2)"),
        (["gpt2_124m"], "a directive begins with its kind: config:gpt2_124m"),
        (["sett:num_steps=5"], "there is no directive 'sett'. Did you mean set?"),
        (["set:num_steps=5", "config:debug"], "a config: comes first, and only once"),
        (["config:debug", "config:debug"], "a config: comes first, and only once"),
        (["config:debug", "config_file:x"], "a config_file: comes first, and only once"),
        (["config:bse"], "there is no config 'bse'. Did you mean base?"),
        (["config:"], "there is no config ''. There are base, debug, deepseek_v2_lite"),
        (["config:make_large"], "there is no config 'make_large'. There is fiddler:make_large."),
        (["fiddler:HiddenDim"], "there is no fiddler 'HiddenDim'. There is tag:HiddenDim."),
        (["fiddler:use_gqu"], "there is no fiddler 'use_gqu'. Did you mean use_gqa"),
        (["fiddler:__class__"], "there is no fiddler '__class__'."),
        (["fiddler:make_large(2)"], "make_large takes no arguments, and is given 1."),
        (["fiddler:use_gqa(heads=2)"], "use_gqa has no argument 'heads'. There is num_kv_heads."),
        (["fiddler:use_gqa(num_kv_heads=2.5)"], "num_kv_heads: '2.5' is not an int."),
        (["fiddler:use_text"], "use_text needs path: use_text(path=...)."),
        (["set:num_steps"], "there is no '=' with a name before it."),
        (["set:=5"], "there is no '=' with a name before it."),
        (["set:"], "there is no '=' with a name before it."),
        (["set:model.hiden_dim=5"], "model (Transformer) has no parameter 'hiden_dim'."),
        (["set:hidden_dim=5"], "Trainer has no parameter 'hidden_dim'."),
        (["set:model.hidden_dim=5.5"], "model.hidden_dim: '5.5' is not an int."),
        (
            ["set:model.hidden_dim="],
            "model.hidden_dim: nothing stands after the '=', and it takes an int.",
        ),
        (["set:model.hidden_dim.x=5"], "model.hidden_dim is 256 (int), so there is nothing at"),
        (["set:model.blocks[4].dropout=0.1"], "model.blocks has 1 entry, counted from 0;"),
        (["set:model.blocks[0]=5"], "model.blocks[0]: '5' is not a Callable[[], Module]. Name a "),
        (["set:optimizer.betas[0]=0.8"], "optimizer.betas is a tuple: set it whole, as (0.9, "),
        (["set:model..x=5"], "'model..x' is not a path: it goes wrong at '..x'."),
        (
            ["set:model.norm=5"],
            "model.norm: '5' is not a Module. Name a part that fits, such as OffsetRMSNorm",
        ),
        (["tag:LerningRate=1"], "there is no tag 'LerningRate'. Did you mean LearningRate?"),
        (["tag:LearningRate=fast"], "optimizer.lr: 'fast' is not a float."),
        (["tag:NumKVHeads=2"], "no parameter of Trainer carries the tag NumKVHeads"),
        (["tag:"], "there is no '=' with a name before it."),
    ],
)
def test_mistakes(directives: list[str], message: str) -> None:
    lines = refused(*directives)
    assert lines[0] == f"--config={directives[-1]} (directive {len(directives)}):"
    assert lines[1].strip().startswith(message)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    for name, message in {
        "none.json": "cannot be read: No such file or directory.",
        "": "cannot be read: Is a directory.",
        "binary.json": "cannot be read: it is not UTF-8 text.",
        "empty.json": "empty.json is empty: it holds no config.",
        "other.json": "is not a fidgpt config",
        "a\0b": "cannot be read",
    }.items():
        assert message in refused(f"config_file:{tmp_path / name}")[1]


def test_the_cause_of_a_mistake_is_there_for_debug() -> None:
    with pytest.raises(ConfigError) as caught:
        composed("set:nope=1")
    assert isinstance(caught.value.__cause__, ConfigError)


def test_untagged_graphs_have_no_tag_to_set() -> None:
    catalogue = dataclasses.replace(OWN, configs={"base": lambda: fdl.Config(RoPE, head_dim=4)})
    lines = refused("tag:HiddenDim=5", catalogue=catalogue)
    assert lines[1].endswith("carries the tag HiddenDim, so nothing would change. There is none.")


def test_one_width_moves_all_that_follow_and_nothing_else() -> None:
    wide = composed("config:debug", "set:model.hidden_dim=64", "set:model.blocks[0].mlp.ffn_dim=16")
    before, after = (outline(cfg).splitlines() for cfg in (debug(), wide))
    changed = sorted(line.strip() for line in after if line not in before)
    followers = ["hidden_dim: 64  <- model.hidden_dim"] * 6
    assert changed == ["ffn_dim: 16", "hidden_dim: 64", *followers]


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        ("set", "'set' needs a colon"),
        ("SET:seed=3", "write set: in small letters"),
        ("patch:", "the name of a file is missing"),
        ("set:samples.prompts=\udcff", "it is not UTF-8 text"),
    ],
)
def test_what_is_hardly_a_directive(directive: str, message: str) -> None:
    assert message in refused("config:debug", directive)[1]
