"""What each kind of directive does to a real config, and what a wrong one prints."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs, data, fiddlers, tags
from fidgpt.compose.catalogue import Catalogue, own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.compose.directives import DIRECTIVES, is_base, is_by_machine, split_directive
from fidgpt.graph import (
    ConfigError,
    bind,
    check,
    dump,
    edits,
    find_parameter,
    fingerprint,
    outline,
)
from fidgpt.graph.difference.patches import patch_of
from fidgpt.graph.outlines import flat
from fidgpt.graph.provenance import assignments_at
from fidgpt.runs.building import build_trainer
from fidgpt.runs.directories import name_of_base

OWN = own_catalogue()
DEBUG = "config:debug"


def composed(*directives: str, catalogue: Catalogue = OWN) -> Any:
    return compose(directives, catalogue).config


def made(*directives: str) -> Any:
    cfg = composed(DEBUG, *directives)
    check(bind(check(cfg)))
    return cfg


def message_of(*directives: str, catalogue: Catalogue = OWN) -> str:
    """The message below the wrong directive, which is the last one, and its carets."""
    with pytest.raises(ConfigError) as caught:
        compose(directives, catalogue)
    head, directive, carets, *message = str(caught.value).splitlines()
    assert head == f"directive {len(directives)} is wrong:"
    assert directive == f"  --config={directives[-1]}"
    assert set(carets) == {" ", "^"}
    return "\n".join(message).strip()


def with_fiddlers(*functions: Any) -> Catalogue:
    own = {function.__name__: function for function in functions}
    return dataclasses.replace(OWN, fiddlers={**OWN.fiddlers, **own})


def attention(cfg: Any) -> Any:
    return cfg.model.blocks[0].attention


def test_the_catalogue_and_the_kinds() -> None:
    assert set(OWN.configs) == {*configs.__all__, "chat", "from_hf"}
    assert set(OWN.fiddlers) == {*fiddlers.__all__, "use_distillation"}
    assert OWN.tags["HiddenDim"] is tags.HiddenDim and not {"Tag", "fdl"} & OWN.tags.keys()
    parts = own_catalogue(("numpy",)).parts
    assert all(n in parts for n in ("numpy.linalg.norm", "torch.optim.sgd.SGD", "optim.adamw"))
    assert "fidgpt.cli.train.run" not in parts
    assert split_directive(" set :a=1:2") == ("set", "a=1:2")
    assert split_directive("make_large") == ("", "make_large")
    assert [kind for kind in DIRECTIVES if is_base(f" {kind} :x")] == [*DIRECTIVES][:3]
    assert not is_base("config") and not is_base("base")
    assert is_by_machine("fiddler:fidgpt.fiddlers.for_hardware (h100)")
    assert not is_by_machine("use:for_hardware")


def test_directives_apply_in_order_on_base_unless_they_begin_elsewhere() -> None:
    assert fingerprint(composed()) == fingerprint(configs.base())
    assert fingerprint(composed(DEBUG)) == fingerprint(configs.debug())
    assert composed("set:num_steps=7", "tag:NumSteps=9").num_steps == 9
    assert composed("tag:NumSteps=9", "set:num_steps=7").num_steps == 7
    cfg = composed("config:base", "fiddler:make_large", "set:model.hidden_dim=1024")
    fresh = configs.base()
    fiddlers.make_large(fresh)
    fresh.model.hidden_dim = 1024
    assert fingerprint(cfg) == fingerprint(fresh)
    assert composed("set:model.hidden_dim=1024", "fiddler:make_small").model.hidden_dim == 768


def test_a_base_is_a_file_a_text_or_a_function(tmp_path: Path) -> None:
    path = tmp_path / "of mine.json"
    path.write_text(dump(composed(DEBUG, "fiddler:use_gqa")), encoding="utf-8")
    same = composed(DEBUG, "set:model.hidden_dim=64", "fiddler:use_gqa")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_bytes(path.read_bytes())
    for source in (path, tmp_path / "run", tmp_path / "run/"):
        cfg = composed(f"config_file:{source}", "set:model.hidden_dim=64")
        assert fingerprint(cfg) == fingerprint(same)
    assert name_of_base([f"config_file:{tmp_path / 'run'}"]) == "run"
    assert composed(f"config_str:{dump(configs.debug())}", "set:seed=4").seed == 4

    def sized(*, width: int = 3) -> Any:
        cfg = configs.debug()
        cfg.model.hidden_dim = width
        return cfg

    own = {"base": configs.base, "sized": sized, "five": lambda: 5, "broken": lambda: {}["x"]}
    catalogue = dataclasses.replace(OWN, configs=own)
    for text in ("config:sized(width=48)", "config:sized(48)"):
        assert composed(text, catalogue=catalogue).model.hidden_dim == 48
    assert "returns int" in message_of("config:five", catalogue=catalogue)
    assert "KeyError: 'x'" in message_of("config:broken", catalogue=catalogue)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    (tmp_path / "patch.json").write_text(patch_of(configs.debug(), made("set:seed=3")).text())
    for name, message in {
        "": "cannot be read: Is a directory.",
        "binary.json": "cannot be read: it is not UTF-8 text.",
        "empty.json": "empty.json is not a fidgpt config: it is empty.",
        "other.json": "is not a fidgpt config",
        "patch.json": "is not a fidgpt config: its format is 'fidgpt.patch'",
    }.items():
        assert message in message_of(f"config_file:{tmp_path / name}")


ATTENTION = "model.blocks[0].attention"


@pytest.mark.parametrize(
    ("directives", "lines"),
    [
        ("set:num_steps=1e3", ["num_steps = 1000"]),
        ("set:evaluators['validation'].every={num_steps} // 5",
         ["evaluators['validation'].every = {num_steps} // 5"]),
        ("set:model.num_layers*=2 tag:LearningRate*=0.5 set:seed+=3",
         ["model.num_layers = 4", "optimizer.lr = 0.0005", "seed = 3"]),
        ("fiddler:unroll set:model.blocks[1::2].attention.rope=None",
         ["model.blocks[0].attention.rope = RoPE", "model.blocks[1].attention.rope = None"]),
        ("set:**.eps=1e-6 set::SwiGLU.bias=true set:model.@InitStd=0.01",
         ["model.norm.eps = 1e-06", "model.blocks[0].mlp_norm.eps = 1e-06",
          "model.blocks[0].mlp.bias = True", "model.embedding.weight.init.std = 0.01"]),
        ("set:evaluators+={more: Validation(data=HeldOut(num_batches=1), every=5)} "
         "tie:evaluators['more'].data.corpus=data.corpus",
         ["evaluators['more'].every = 5", "evaluators['more'].data.corpus = *data.corpus"]),
        (f"set:{ATTENTION}.rope=RoPE(theta=5e5)",
         [f"{ATTENTION}.rope.theta = 500000.0", f"{ATTENTION}.rope.head_dim = 16  <- {ATTENTION}."
          "head_dim"]),
        ("use:model.blocks[0].mlp=GELU(bias=True)",
         ["model.blocks[0].mlp = GELU (new on each call)",
         "model.blocks[0].mlp.bias = True"]),
        ("use::RMSNorm=torch.nn.LayerNorm(normalized_shape={@HiddenDim})",
         ["model.norm.normalized_shape = {@HiddenDim}"]),
    ],
)  # fmt: skip
def test_effects(directives: str, lines: list[str]) -> None:
    """More of what they can do is in tests/graph/test_edits.py."""
    found = flat(made(*re.split(r" (?=\w+:)", directives))).splitlines()
    assert [line for line in lines if line not in found] == []


def test_blocks_beyond_the_depth() -> None:
    message = message_of("config:debug", "fiddler:unroll", "set:model.blocks[5:].dropout=0.1")
    assert "Set the depth before fiddler:unroll to have more." in message
    assert "put fiddler:unroll" in message_of("config:debug", "set:model.blocks[1].dropout=0.1")


def test_fiddlers_take_arguments_without_quotes() -> None:
    cfg = composed("fiddler:use_gqa(num_kv_heads=1)", "fiddler:use_text('/a, b/c.txt')")
    assert attention(cfg).num_kv_heads == 1
    assert fdl.get_callable(cfg.data.corpus.source) is data.TextFiles
    assert fdl.ordered_arguments(cfg.data.corpus.source)["path"] == "/a, b/c.txt"
    cfg = composed("fiddler:use_text(/data/my text.jsonl, text_field=body)")
    assert "'/data/my text.jsonl'" in outline(cfg)
    assert cfg.data.corpus.source.text_field == "body"


def test_fiddlers_may_raise_or_return() -> None:
    def fails(cfg: Any) -> None:
        cfg.model.no_such_part = 3

    def returns(cfg: Any) -> Any:
        return cfg

    catalogue = with_fiddlers(fails, returns)
    message = message_of("fiddler:returns", catalogue=catalogue)
    assert message.startswith(
        "returns returns Config, but a fiddler must return None: it changes its"
    )
    message = message_of("fiddler:fails", catalogue=catalogue)
    assert message.startswith("fails failed, so it may not suit this config.")
    assert "AttributeError: No parameter named 'no_such_part'" in message


def test_a_saved_difference_is_applied(tmp_path: Path) -> None:
    wide = made("set:model.hidden_dim=64", "fiddler:use_gqa(1)")
    patch = tmp_path / "wide.patch"
    patch.write_text(patch_of(configs.debug(), wide).text(), encoding="utf-8-sig")
    assert fingerprint(made(f"patch:{patch}")) == fingerprint(wide)
    for form in ("json", "yaml"):  # a byte-order mark before the text is no error
        file = tmp_path / f"config.{form}"
        file.write_text(dump(configs.debug(), form=form), encoding="utf-8-sig")
        assert fingerprint(composed(f"config_file:{file}", f"patch:{patch}")) == fingerprint(wide)
    assert "not a fidgpt patch" in message_of(DEBUG, f"patch:{tmp_path}/config.json")
    (tmp_path / "empty.patch").write_text("\n")
    assert message_of(DEBUG, f"patch:{tmp_path}/empty.patch").endswith("patch: it is empty.")
    assert "test_directives.py is not a fidgpt patch: line 1" in message_of(
        DEBUG, f"patch:{__file__}"
    )


def test_a_sequence_that_no_machine_can_hold_is_an_error() -> None:
    with pytest.raises(ConfigError, match="seq_len=1000000000 is too long for this model"):
        build_trainer(compose(["config:base", "set:seq_len=10**9"]).resolved)


def test_each_directive_records_what_it_changed() -> None:
    done = compose(
        [DEBUG, "set:seed=3", "set:seed=3", "set:model.hidden_dim=64", "fiddler:make_large"]
    )
    assert [effect.number for effect in done.effects] == [1, 2, 3, 4, 5]
    assert done.effects[1].edits == [edits.Edit("seed", 0, 3)]
    assert done.effects[0].edits == done.effects[2].edits == []
    changed = {edit.path: (edit.before, edit.after) for edit in done.effects[4].edits}
    assert changed["model.hidden_dim"] == (64, 1280)
    assert compose(["fiddler:make_small"]).effects[0].text == "config:base"
    for path, last in {
        "model.hidden_dim": "fiddler:make_small",
        "samples.prompts[1]": "set:samples.prompts[1]=c",
        "samples.prompts[0]": "set:samples.prompts[0:1]=c",
        "trackers[1]": "set:trackers[-1]=Console",
    }.items():
        found = assignments_at(find_parameter(made("set:seed=2", last), path))
        assert str(found[0].by) == f"directive 3: {last}"
