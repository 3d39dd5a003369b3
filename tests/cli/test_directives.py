"""What each kind of directive does to a real config, and what a wrong one prints."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
from torch import nn

from fidgpt import configs, fiddlers
from fidgpt.compose.catalogue import Catalogue, own_catalogue
from fidgpt.compose.composition import apply_fiddlers, compose
from fidgpt.compose.directives import DIRECTIVES, is_base, is_by_machine, split_directive
from fidgpt.compose.runs import build_trainer
from fidgpt.configs import base, debug
from fidgpt.data import TextFiles
from fidgpt.graph import ConfigError, bind, build, check, dump, fingerprint, load, outline
from fidgpt.graph.difference.patches import patch_of
from fidgpt.graph.edits import Edit
from fidgpt.graph.provenance import provenance_of
from fidgpt.model import GELU, Attention, Normal, RoPE, sdpa
from fidgpt.optim import WarmupStableDecay
from fidgpt.tags import HiddenDim, LearningRate

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


def test_the_catalogue_holds_what_the_modules_list() -> None:
    assert set(OWN.configs) == {*configs.__all__, "from_hf"}
    assert set(OWN.fiddlers) == set(fiddlers.__all__)
    assert OWN.tags["HiddenDim"] is HiddenDim
    assert not {"Tag", "fdl"} & OWN.tags.keys()
    parts = own_catalogue(("numpy",)).parts
    assert all(n in parts for n in ("numpy.linalg.norm", "torch.optim.sgd.SGD", "optim.adamw"))
    assert "fidgpt.cli.train.run" not in parts


def test_a_directive_is_a_kind_and_the_rest() -> None:
    assert split_directive(" set :a=1:2") == ("set", "a=1:2")
    assert split_directive("make_large") == ("", "make_large")
    assert [kind for kind in DIRECTIVES if is_base(f" {kind} :x")] == [*DIRECTIVES][:3]
    assert not is_base("config") and not is_base("base")
    assert is_by_machine("fiddler:fidgpt.fiddlers.for_hardware (h100)")
    assert not is_by_machine("use:for_hardware")


def test_without_a_base_it_is_base() -> None:
    assert fingerprint(composed()) == fingerprint(base())
    assert composed("set:num_steps=7").num_steps == 7
    assert fingerprint(composed(DEBUG)) == fingerprint(debug())


def test_directives_apply_in_order() -> None:
    assert composed("set:num_steps=7", "tag:NumSteps=9").num_steps == 9
    assert composed("tag:NumSteps=9", "set:num_steps=7").num_steps == 7
    cfg = composed("config:base", "fiddler:make_large", "set:model.hidden_dim=1024")
    fresh = base()
    fiddlers.make_large(fresh)
    fresh.model.hidden_dim = 1024
    assert fingerprint(cfg) == fingerprint(fresh)
    assert composed("set:model.hidden_dim=1024", "fiddler:make_small").model.hidden_dim == 768


def test_a_graph_that_is_kept_elsewhere_stays_as_it_is() -> None:
    kept, seen = debug(), []

    def fails_halfway(cfg: Any) -> None:
        cfg.model.blocks.append(1)
        raise ValueError("no")

    catalogue = with_fiddlers(fails_halfway, seen.append)
    catalogue = dataclasses.replace(
        catalogue,
        configs={"base": base, "kept": lambda: kept},
        fiddlers={**catalogue.fiddlers, "seen": lambda cfg: seen.append(cfg)},
    )
    composed("config:kept", "set:seed=9", "set:model.norm.eps=1.0", catalogue=catalogue)
    message_of("config:kept", "fiddler:seen", "fiddler:fails_halfway", catalogue=catalogue)
    assert fingerprint(kept) == fingerprint(seen[0]) == fingerprint(debug())


class TestBases:
    def test_a_file_or_a_text(self, tmp_path: Path) -> None:
        path = tmp_path / "of mine.json"
        path.write_text(dump(composed(DEBUG, "fiddler:use_gqa")), encoding="utf-8")
        cfg = composed(f"config_file:{path}", "set:model.hidden_dim=64")
        same = composed(DEBUG, "set:model.hidden_dim=64", "fiddler:use_gqa")
        assert fingerprint(cfg) == fingerprint(same)
        assert composed(f"config_str:{dump(debug())}", "set:seed=4").seed == 4

    def test_what_is_not_a_config(self, tmp_path: Path) -> None:
        def sized(*, width: int = 3) -> Any:
            cfg = debug()
            cfg.model.hidden_dim = width
            return cfg

        own = {"base": base, "sized": sized, "five": lambda: 5, "broken": lambda: {}["x"]}
        catalogue = dataclasses.replace(OWN, configs=own)
        assert composed("config:sized(width=48)", catalogue=catalogue).model.hidden_dim == 48
        assert composed("config:sized(64)", catalogue=catalogue).model.hidden_dim == 64
        assert "returns int" in message_of("config:five", catalogue=catalogue)
        assert "KeyError: 'x'" in message_of("config:broken", catalogue=catalogue)
        (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
        (tmp_path / "empty.json").write_text("")
        (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
        (tmp_path / "patch.json").write_text(patch_of(debug(), made("set:seed=3")).text())
        for name, message in {
            "": "cannot be read: Is a directory.",
            "binary.json": "cannot be read: it is not UTF-8 text.",
            "empty.json": "empty.json: it is empty.",
            "other.json": "is not a fidgpt config",
            "patch.json": "is not a fidgpt config: it is a patch, which changes",
            "a\0b": "cannot be read",
        }.items():
            assert message in message_of(f"config_file:{tmp_path / name}")


class TestSet:
    @pytest.mark.parametrize(
        ("directive", "path", "value"),
        [
            ("set:num_steps=1e3", "num_steps", 1000),
            ("set:max_grad_norm=None", "max_grad_norm", None),
            ("set:optimizer.betas=0.9,0.99", "optimizer.betas", (0.9, 0.99)),
            ("set:samples.prompts=['x = ', '*0.5']", "samples.prompts", ["x = ", "*0.5"]),
            ("set:model.blocks[0].attention.head_dim=2**5", "attention.head_dim", 32),
            ("set:evaluators['validation'].every=50", "evaluators[validation].every", 50),
            ("set:evaluators.validation.every=50", "evaluators[validation].every", 50),
        ],
    )
    def test_values(self, directive: str, path: str, value: Any) -> None:
        cfg = composed(directive)
        found: Any = attention(cfg) if path.startswith("attention") else cfg
        for step in path.removeprefix("attention.").split("."):
            name, _, key = step.partition("[")
            found = getattr(found, name)
            found = found[key.rstrip("]")] if key else found
        assert (found, type(found)) == (value, type(value))

    def test_relative_values_and_references_follow(self) -> None:
        cfg = bind(made("set:model.num_layers*=2", "tag:LearningRate*=0.5", "set:seed+=3"))
        assert (cfg.model.num_layers, cfg.optimizer.lr, cfg.seed) == (4, 5e-4, 3)
        cfg = bind(made("set:evaluators.validation.every={num_steps} // 5", "set:num_steps=200"))
        assert build(cfg.evaluators["validation"].every) == 40

    def test_wildcards_classes_and_tags(self) -> None:
        cfg = made("fiddler:unroll", "set:model.blocks[1::2].attention.rope=None")
        assert [block.attention.rope is None for block in cfg.model.blocks] == [False, True]
        cfg = made("set:**.eps=1e-6", "set::SwiGLU.bias=true", "set:model.@InitStd=0.01")
        assert cfg.model.norm.eps == cfg.model.blocks[0].mlp_norm.eps == 1e-6
        assert (cfg.model.blocks[0].mlp.bias, attention(cfg).init.std) == (True, 0.01)
        for name in ("fidgpt.model.RMSNorm", "model.norm.RMSNorm"):
            assert made(f"set::{name}.eps=1e-6").model.norm.eps == 1e-6

    def test_items_are_added_to_lists_and_dicts(self) -> None:
        cfg = made("set:trackers+=[TensorBoard, Console]", "set:samples.prompts+=[while, 'if x']")
        names = [fdl.get_callable(one).__name__ for one in cfg.trackers]
        assert names == ["Console", "JSONLines", "TensorBoard", "Console"]
        assert cfg.samples.prompts == ["def ", "class ", "while", "if x"]
        cfg = made("set:**.scores+=[Softcap(cap=30)]", "set:groups=ParameterGroups([])")
        assert type(attention(cfg).scores[0]) is fdl.ArgFactory
        more = "set:evaluators+={more: Validation(data=HeldOut(num_batches=1), every=5)}"
        cfg = composed(DEBUG, more, "tie:evaluators['more'].data.corpus=data.corpus")
        assert set(build(bind(cfg)).evaluators) == {"validation", "more"}

    def test_parts_by_name(self) -> None:
        cfg = made("set:model.blocks[0].attention.rope=RoPE(theta=5e5)")
        rope = attention(cfg).rope
        assert (type(rope), rope.theta) == (fdl.Config, 5e5)
        assert attention(bind(cfg)).rope.head_dim == 16
        cfg = made("set:model.blocks[0].attention.kernel=sdpa", "set:**.init=Normal(std=0.1)")
        assert attention(cfg).kernel is sdpa
        assert fdl.get_callable(attention(cfg).init) is Normal
        kernel = attention(made("set:**.kernel=blockwise(block_size=8)")).kernel
        assert (type(kernel), kernel.block_size) == (fdl.Partial, 8)
        made("set:optimizer=torch.optim.SGD(lr=0.1)", "set:model.norm=torch.nn.LayerNorm(32)")
        made("set:schedule=optim.Constant()")


def test_tag_sets_a_quantity_wherever_it_is_set() -> None:
    cfg = composed("tag:LearningRate=3e-4", "tag:HiddenDim=2**9", "tag:WarmupSteps=7")
    assert (cfg.optimizer.lr, cfg.model.hidden_dim) == (3e-4, 512)
    assert fdl.get_tags(cfg.optimizer, "lr") == {LearningRate}
    assert cfg.schedule.warmup_steps == 7
    catalogue = dataclasses.replace(OWN, configs={"base": lambda: fdl.Config(RoPE, head_dim=4)})
    untagged = message_of("tag:HiddenDim=5", catalogue=catalogue)
    assert untagged.endswith("carries the tag HiddenDim, so nothing would change. There is none.")


def test_use_keeps_what_both_have() -> None:
    decay = "use:schedule=WarmupStableDecay(decay_steps={num_steps} // 5)"
    cfg = made("use:model.blocks[0].mlp=GELU(bias=True)", decay)
    assert fdl.get_callable(cfg.model.blocks[0].mlp) is GELU
    assert fdl.get_callable(cfg.schedule) is WarmupStableDecay
    assert build(bind(cfg).schedule).decay_steps == 2
    norm = build(made("use::RMSNorm=torch.nn.LayerNorm(normalized_shape={@HiddenDim})")).model.norm
    assert isinstance(norm, nn.LayerNorm) and norm.normalized_shape == (32,)


def test_tie_and_untie() -> None:
    untie = "untie:model.unembedding.weight"
    cfg = made(untie)
    assert cfg.model.unembedding.weight is not cfg.model.embedding.weight
    cfg = made(untie, "tie:model.unembedding.weight=model.embedding.weight")
    assert fingerprint(cfg) == fingerprint(debug())


class TestFiddlers:
    def test_take_arguments_without_quotes(self) -> None:
        cfg = composed("fiddler:use_gqa(num_kv_heads=1)", "fiddler:use_text('/a, b/c.txt')")
        assert attention(cfg).num_kv_heads == 1
        assert fdl.get_callable(cfg.data.corpus.source) is TextFiles
        assert fdl.ordered_arguments(cfg.data.corpus.source)["path"] == "/a, b/c.txt"
        cfg = composed("fiddler:use_text(/data/my text.jsonl, text_field=body)")
        assert "'/data/my text.jsonl'" in outline(cfg)
        assert cfg.data.corpus.source.text_field == "body"

    def test_may_raise_return_or_fail(self) -> None:
        def fails(cfg: Any) -> None:
            cfg.model.no_such_part = 3

        catalogue = with_fiddlers(fails)
        own = {**catalogue.fiddlers, "returns": lambda cfg: cfg}
        catalogue = dataclasses.replace(catalogue, fiddlers=own)
        message = message_of("fiddler:returns", catalogue=catalogue)
        assert message == (
            "returns returns Config, and a fiddler returns None: it changes the graph that it is "
            "given."
        )
        message = message_of("fiddler:fails", catalogue=catalogue)
        assert message.startswith("fails failed, so it may not suit this config.")
        assert "AttributeError: No parameter named 'no_such_part'" in message

    def test_as_parts_of_a_saved_list(self) -> None:
        changes = [fdl.Partial(use_gqa := fiddlers.use_gqa, num_kv_heads=1), fiddlers.make_large]
        cfg = debug()
        changed = apply_fiddlers(cfg, changes)
        assert (attention(changed).num_kv_heads, changed.model.num_layers) == (1, 36)
        assert fingerprint(cfg) == fingerprint(debug())
        again = load(dump(fdl.Partial(use_gqa, num_kv_heads=1)))
        assert attention(apply_fiddlers(debug(), [again])).num_kv_heads == 1
        with pytest.raises(ConfigError, match="RoPE is not a fiddler: give a function"):
            apply_fiddlers(debug(), [fdl.Config(RoPE, head_dim=4)])
        with pytest.raises(ConfigError, match="Attention failed, so it may not"):
            apply_fiddlers(debug(), [fdl.Partial(Attention)])


class TestPatches:
    def test_a_saved_difference_is_applied(self, tmp_path: Path) -> None:
        wide = made("set:model.hidden_dim=64", "fiddler:use_gqa(1)")
        patch = tmp_path / "wide.patch"
        patch.write_text(patch_of(debug(), wide).text(), encoding="utf-8-sig")
        assert fingerprint(made(f"patch:{patch}")) == fingerprint(wide)
        for form in ("json", "yaml"):  # a byte-order mark before the text is no error
            file = tmp_path / f"config.{form}"
            file.write_text(dump(debug(), form=form), encoding="utf-8-sig")
            cfg = composed(f"config_file:{file}", f"patch:{patch}")
            assert fingerprint(cfg) == fingerprint(wide)
        assert message_of(DEBUG, f"patch:{tmp_path}/config.json").endswith("is a whole config.")

    def test_what_is_not_a_patch(self, tmp_path: Path) -> None:
        (tmp_path / "empty.patch").write_text("\n")
        empty = message_of(DEBUG, f"patch:{tmp_path / 'empty.patch'}")
        assert empty.endswith("empty.patch: it is empty.")
        assert f"{__file__}: line" in message_of(DEBUG, f"patch:{__file__}")


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        ("", "there is no directive ''. There are config, config_file, config_str, del, "),
        ("use_gqa(2)", "a directive begins with its kind and a colon: fiddler:use_gqa(2)"),
        ("set", "a directive begins with its kind and a colon: set:PATH=VALUE"),
        ("SET:seed=3", "a directive begins with its kind and a colon: set:seed=3"),
        ("config_file:x", "a config_file: comes first, and only once"),
        ("patch:", "the name of a file is missing"),
        ("set:samples.prompts=\udcff", "it is not UTF-8 text"),
        ("fiddler:HiddenDim", "there is no fiddler 'HiddenDim'. There is tag:HiddenDim."),
        ("set:=5", "there is no '=' with a name before it."),
        ("set:model.hidden_dim=", "model.hidden_dim: nothing stands after the '=', and it takes "),
        ("use:model.norm*=2", "*= is for set: and tag:, for numbers and lists."),
        ("use:schedule=4", "4 is a value, not a part. Name a part that fits, such as Warmup"),
        ("use:trackers=[Console]", "[Console] is a value, not a part. set:trackers=[Console]"),
        ("set:seed=/ 2", "seed: '/ 2' is not an int. To change what is there, write set:seed*=1/2"),
        ("tag:LearningRate **= 2", "there is no **=: a number is changed"),
    ],
)
def test_mistakes(directive: str, message: str) -> None:
    """More of them, in full, are in goldens/messages.txt."""
    assert message_of(DEBUG, directive).startswith(message)


@pytest.mark.parametrize(
    ("directive", "remedy"),
    [
        ("set:trackers[2]=TensorBoard", "set:trackers+=[TensorBoard]"),
        (
            "set:evaluators['a b']=Validation(every=2, data=HeldOut())",
            "set:evaluators+={'a b':Validation(every=2, data=HeldOut())}",
        ),
        ("set:trackers[2]=TensorBord", None),  # which would not fit there either
        ("set:model.blocks[1]=Block", None),  # the message is about layers
        ("del:trackers[2]", None),
    ],
)
def test_a_missing_entry_can_be_added(directive: str, remedy: str | None) -> None:
    last = message_of(directive).splitlines()[-1].strip()
    assert last == f"To add one, write {remedy}" if remedy else "To add one" not in last


def test_a_model_that_cannot_be_called_is_an_error() -> None:
    with pytest.raises(ConfigError, match="the model cannot read a sequence of seq_len=32"):
        build_trainer(made("use:model=LanguageModel"))


class TestEffects:
    def test_each_directive_records_what_it_changed(self) -> None:
        done = compose(
            [DEBUG, "set:seed=3", "set:seed=3", "set:model.hidden_dim=64", "fiddler:make_large"]
        )
        assert [effect.number for effect in done.effects] == [1, 2, 3, 4, 5]
        assert done.effects[1].edits == [Edit("seed", 0, 3)]
        assert done.effects[0].edits == done.effects[2].edits == []
        changed = {edit.path: (edit.before, edit.after) for edit in done.effects[4].edits}
        assert changed["model.hidden_dim"] == (64, 1280)
        assert compose(["fiddler:make_small"]).effects[0].text == "config:base"

    @pytest.mark.parametrize(
        ("path", "directives"),
        [
            ("model.hidden_dim", ["set:model.hidden_dim=64", "fiddler:make_small"]),
            ("samples.prompts[1]", ["set:seed=2", "set:samples.prompts[1]=c"]),
            ("samples.prompts[0]", ["set:seed=2", "set:samples.prompts[0:1]=c"]),
            ("trackers[1]", ["set:seed=2", "set:trackers[-1]=Console"]),
        ],
    )
    def test_the_source_of_a_value_is_recorded(self, path: str, directives: list[str]) -> None:
        found = provenance_of(made(*directives), path).assignments
        assert str(found[0].by) == f"directive 3: {directives[1]}"
