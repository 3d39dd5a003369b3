"""What each directive does to a real config, what it reports, and what it leaves alone."""

import dataclasses
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
from torch import nn

from fidgpt.compose.catalogue import Catalogue, own_catalogue
from fidgpt.compose.composition import apply_fiddlers, compose
from fidgpt.compose.runs import build_trainer
from fidgpt.configs import base, debug
from fidgpt.fiddlers import make_large, use_gqa
from fidgpt.graph import ConfigError, bind, build, check, dump, fingerprint, load
from fidgpt.graph.difference.patches import patch_of
from fidgpt.graph.edits import Edit
from fidgpt.graph.provenance import provenance_of
from fidgpt.model import GELU, Attention, Normal, RoPE, sdpa
from fidgpt.optim import WarmupStableDecay

OWN = own_catalogue()
DEBUG = "config:debug"


def made(*directives: str, catalogue: Catalogue = OWN) -> Any:
    cfg = compose((DEBUG, *directives), catalogue).config
    check(bind(check(cfg)))
    return cfg


def said(path: str, *directives: str) -> list[str]:
    """By whom something was said of a place, newest first."""
    return [str(one.by) for one in provenance_of(made(*directives), path).assignments]


def refused(*directives: str, catalogue: Catalogue = OWN) -> str:
    with pytest.raises(ConfigError) as caught:
        compose((DEBUG, *directives), catalogue)
    lines = str(caught.value).splitlines()
    assert len(lines) <= 6
    return "\n".join(lines[3:]).strip()


def attention(cfg: Any) -> Any:
    return cfg.model.blocks[0].attention


def test_relative_values_and_references_follow() -> None:
    cfg = bind(made("set:model.num_layers*=2", "tag:LearningRate*=0.5", "set:seed+=3"))
    assert (cfg.model.num_layers, cfg.optimizer.lr, cfg.seed) == (4, 5e-4, 3)
    cfg = bind(made("set:evaluators.validation.every={num_steps} // 5", "set:num_steps=200"))
    assert build(cfg.evaluators["validation"].every) == 40


def test_wildcards_classes_and_tags() -> None:
    cfg = made("fiddler:unroll", "set:model.blocks[1::2].attention.rope=None")
    assert [block.attention.rope is None for block in cfg.model.blocks] == [False, True]
    cfg = made("set:**.eps=1e-6", "set::SwiGLU.bias=true", "set:model.@InitStd=0.01")
    assert cfg.model.norm.eps == cfg.model.blocks[0].mlp_norm.eps == 1e-6
    assert cfg.model.blocks[0].mlp.bias is True
    assert attention(cfg).init.std == 0.01


def test_items_are_added_to_lists_and_dicts() -> None:
    cfg = made("set:trackers+=[TensorBoard, Console]", "set:samples.prompts+=[while, 'if x']")
    names = [fdl.get_callable(one).__name__ for one in cfg.trackers]
    assert names == ["Console", "JSONLines", "TensorBoard", "Console"]
    assert cfg.samples.prompts == ["def ", "class ", "while", "if x"]
    cfg = made("set:**.scores+=[Softcap(cap=30)]", "set:groups=ParameterGroups([])")
    assert type(attention(cfg).scores[0]) is fdl.ArgFactory
    more = "set:evaluators+={more: Validation(data=HeldOut(num_batches=1), every=5)}"
    cfg = compose((DEBUG, more, "tie:evaluators['more'].data.corpus=data.corpus"), OWN).config
    assert set(build(bind(cfg)).evaluators) == {"validation", "more"}


def test_a_class_by_a_name_that_exports_it() -> None:
    for name in ("fidgpt.model.RMSNorm", "model.norm.RMSNorm"):
        assert made(f"set::{name}.eps=1e-6").model.norm.eps == 1e-6


def test_del_goes_back() -> None:
    cfg = made("set:optimizer.betas=(0.8,0.9)", "del:optimizer.betas")
    assert "betas" not in fdl.ordered_arguments(cfg.optimizer)


def test_a_part_by_name() -> None:
    cfg = made("set:model.blocks[0].attention.rope=RoPE(theta=5e5)")
    rope = attention(cfg).rope
    assert (type(rope), rope.theta) == (fdl.Config, 5e5)
    assert bind(cfg).model.blocks[0].attention.rope.head_dim == 16
    cfg = made("set:model.blocks[0].attention.kernel=sdpa", "set:**.init=Normal(std=0.1)")
    assert attention(cfg).kernel is sdpa
    assert fdl.get_callable(attention(cfg).init) is Normal
    kernel = attention(made("set:**.kernel=blockwise(block_size=8)")).kernel
    assert (type(kernel), kernel.block_size) == (fdl.Partial, 8)
    made("set:optimizer=torch.optim.SGD(lr=0.1)", "set:model.norm=torch.nn.LayerNorm(32)")
    made("set:schedule=optim.Constant()")


def test_use_keeps_what_both_have() -> None:
    cfg = made("use:model.blocks[0].mlp=GELU(bias=True)", "use:schedule=WarmupStableDecay("
               "decay_steps={num_steps} // 5)")  # fmt: skip
    assert fdl.get_callable(cfg.model.blocks[0].mlp) is GELU
    assert fdl.get_callable(cfg.schedule) is WarmupStableDecay
    assert build(bind(cfg).schedule).decay_steps == 2
    cfg = made("use::RMSNorm=torch.nn.LayerNorm(normalized_shape={@HiddenDim})")
    norm = build(cfg).model.norm
    assert isinstance(norm, nn.LayerNorm)
    assert norm.normalized_shape == (32,)


def test_tie_and_untie() -> None:
    cfg = made("untie:model.unembedding.weight")
    assert cfg.model.unembedding.weight is not cfg.model.embedding.weight
    cfg = made(
        "untie:model.unembedding.weight", "tie:model.unembedding.weight=model.embedding.weight"
    )
    assert fingerprint(cfg) == fingerprint(debug())


def test_a_config_as_text() -> None:
    cfg = compose([f"config_str:{dump(debug())}", "set:seed=4"], OWN).config
    assert cfg.seed == 4
    with pytest.raises(ConfigError, match="the text is not a fidgpt config"):
        compose(["config_str:no"], OWN)


def test_a_saved_difference_is_applied(tmp_path: Path) -> None:
    wide = made("set:model.hidden_dim=64", "fiddler:use_gqa(1)")
    (tmp_path / "wide.patch").write_text(patch_of(debug(), wide).text())
    assert fingerprint(made(f"patch:{tmp_path / 'wide.patch'}")) == fingerprint(wide)
    assert "neither JSON nor YAML" in refused(f"patch:{__file__}")


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        ("set:model.norm=RMSNrm()", "model.norm: there is no part 'RMSNrm'. Did you mean RMSNorm?"),
        ("use:model.norm=RMSNrm", "there is no part 'RMSNrm'. Did you mean RMSNorm?"),
        ("use:model.norm=Constant", "there is no part 'Constant'. Did you mean"),
        ("use:model.norm*=2", "*= is for set: and tag:, for numbers and lists."),
        ("use:trackers+=Console", "+= is for set: and tag:, for numbers and lists."),
        ("use:model.norm=None", "None is a value, not a part. Name a part that fits, such as "),
        ("use:samples=None", "None is a value, not a part. set:samples=None sets it."),
        ("use:micro_batch_size=4", "4 is a value, not a part. set:micro_batch_size=4 sets it."),
        ("use:schedule=4", "4 is a value, not a part. Name a part that fits, such as Warmup"),
        ("use:trackers=[Console]", "[Console] is a value, not a part. set:trackers=[Console] "
         "sets it."),
        ("use:schedul=4", "Trainer has no parameter 'schedul'. Did you mean schedule"),
        ("set:trackers+=[Consol]", "trackers[2]: 'Consol' is not a Tracker. Name a part that fits"),
        ("set:+trackers=[Console]", "'+trackers' is not a path: it goes wrong at '+trackers'. "
         "No sign precedes a path: += after it adds items, and del: removes a value."),
        ("use:model.norm=adamw(lr=1)", "model.norm takes Module, not the part adamw."),
        ("tie:model.norm", "there is no '=' with a name before it."),
        ("tie:model.norm=model.hidden_dim", "model.hidden_dim is 32 (int), and only a part"),
        ("untie:model.norm", "nothing else holds model.norm (RMSNorm). Shared are "),
        ("del:model.nrm", "model (Transformer) has no parameter 'nrm'. Did you mean norm?"),
        ("del:", "the path is empty"),
        ("set:**.dropuot=0.1", "**.dropuot selects nothing: nothing there has a parameter"),
        ("set:@LerningRate=1", "@LerningRate selects nothing: "),
        ("set:num_steps={num_stps}*2", "") ,
        ("set:num_steps*=fast", "num_steps*=fast: it is not arithmetic"),
        ("tag:LearningRate=*0.5", "optimizer.lr: '*0.5' is not a float. To change what is there, "
         "write tag:LearningRate*=0.5."),
        ("set:optimizer.lr=*=2", "optimizer.lr: '*=2' is not a float. To change what is there, "
         "write set:optimizer.lr*=2."),
        ("set:seed=/ 2", "seed: '/ 2' is not an int. To change what is there, write set:seed*=1/2"),
        ("set:seed=x*2", "seed: 'x*2' is not an int."),
        ("set:optimizer.lr/=2", "there is no /=: a number is changed by *=, += and -=, so that "
         "optimizer.lr*=1/2 halves it."),
        ("tag:LearningRate **= 2", "there is no **=: a number is changed"),
        ("use:model.norm=torch.load", "there is no part 'torch.load'. Name a part that fits, such "
         "as "),
        ("use:optimizer=torch.load", "there is no part 'torch.load'. Name a part that fits, such "
         "as adamw, Adafactor, Lion, Muon."),
        (
            "use:loss=fidgpt.graph.formulas.make_formula",
            "there is no part 'fidgpt.graph.formulas.",
        ),
        ("use:loss=numpy.load", "numpy.load cannot be used: numpy is installed and does"),
        ("use:schedule=fraction", "schedule takes Schedule, not the part fraction."),
        ("use:groups=Normal", "groups: 'Normal' is not a Callable[[Module], list["),
        ("tag:HiddenDim*=1.3", "model.hidden_dim*=1.3: 32 * 1.3 is 41.6, and it takes int."),
        ("set:model.num_layers={model.num_layers}*2", "model.num_layers: it cannot be computed"),
    ],
)  # fmt: skip
def test_mistakes(directive: str, message: str) -> None:
    if not message:
        with pytest.raises(ConfigError, match="num_steps is {num_stps}\\*2: Trainer has no para"):
            made(directive)
        return
    assert refused(directive).startswith(message)


def test_what_a_word_that_begins_with_a_star_means_is_for_its_place_to_tell() -> None:
    assert made("set:samples.prompts=['*0.5']").samples.prompts == ["*0.5"]
    assert made("set:optimizer.lr=+0.5").optimizer.lr == 0.5


def test_an_empty_patch_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.patch").write_text("\n")
    assert refused(f"patch:{tmp_path / 'empty.patch'}").endswith("is empty: it holds no patch.")


def test_a_mark_before_the_text_is_no_mistake(tmp_path: Path) -> None:
    texts = {"c.json": dump(debug()), "c.yaml": dump(debug(), form="yaml")}
    texts["p.patch"] = patch_of(debug(), made("set:seed=3")).text()
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
    for name in ("c.json", "c.yaml"):
        cfg = compose(
            [f"config_file:{tmp_path / name}", f"patch:{tmp_path / 'p.patch'}"], OWN
        ).config
        assert fingerprint(cfg) == fingerprint(made("set:seed=3"))


def test_a_patch_is_no_config_nor_a_config_a_patch(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(patch_of(debug(), made("set:seed=3")).text())
    (tmp_path / "c.json").write_text(dump(debug()))
    assert refused(f"patch:{tmp_path / 'c.json'}").endswith("is a whole config.")
    with pytest.raises(ConfigError, match="is not a fidgpt config: it is a patch, which changes"):
        compose([f"config_file:{tmp_path / 'p.json'}"], OWN)


def test_a_model_that_cannot_be_called_is_no_traceback() -> None:
    with pytest.raises(ConfigError, match="the model cannot read a sequence of seq_len=32"):
        build_trainer(made("use:model=LanguageModel"))


def test_parts_of_packages_that_are_allowed() -> None:
    parts = own_catalogue(("numpy",)).parts
    assert "numpy.linalg.norm" in parts
    assert "torch.optim.sgd.SGD" in parts
    assert "fidgpt.optim.adamw" in parts
    assert "fidgpt.cli.train.run" not in parts


class TestEffects:
    def test_each_directive_says_what_it_changed(self) -> None:
        done = compose([DEBUG, "set:seed=3", "set:seed=3", "fiddler:use_gqa(1)"], OWN)
        assert [effect.number for effect in done.effects] == [1, 2, 3, 4]
        assert done.effects[0].edits == []
        assert done.effects[1].edits == [Edit("seed", 0, 3)]
        assert done.effects[2].edits == []
        paths = [edit.path for edit in done.effects[3].edits]
        assert paths == ["model.blocks[0].attention.num_kv_heads"]

    def test_of_a_fiddler_they_are_those_of_its_own_time(self) -> None:
        done = compose(["fiddler:make_small", "set:model.hidden_dim=64", "fiddler:make_large"], OWN)
        assert [effect.number for effect in done.effects] == [0, 1, 2, 3]
        changed = {edit.path: edit.after for edit in done.effects[1].edits}
        assert changed == {"model.hidden_dim": 768, "model.num_layers": 12}
        changed = {edit.path: (edit.before, edit.after) for edit in done.effects[3].edits}
        assert changed["model.hidden_dim"] == (64, 1280)

    def test_who_said_it_is_remembered(self) -> None:
        newest, before, *_ = said(
            "model.hidden_dim", "set:model.hidden_dim=64", "fiddler:make_small"
        )
        assert before == "directive 2: set:model.hidden_dim=64"
        assert newest == "directive 3: fiddler:make_small"

    def test_of_an_item_of_a_list_too(self) -> None:
        samples = "set:samples=Samples(prompts=['a','b'])"
        for path, directive in [
            ("samples.prompts[1]", "set:samples.prompts[1]=c"),
            ("samples.prompts[0]", "set:samples.prompts[0:1]=c"),
            ("trackers[1]", "set:trackers[-1]=Console"),
        ]:
            assert said(path, samples, directive)[0] == f"directive 3: {directive}"


def test_a_config_that_keeps_its_graph_is_not_changed() -> None:
    kept = debug()
    catalogue = dataclasses.replace(OWN, configs={"base": base, "kept": lambda: kept})
    compose(["config:kept", "set:seed=9", "set:model.norm.eps=1.0"], catalogue)
    assert fingerprint(kept) == fingerprint(debug())


class TestFiddlersAsParts:
    def test_in_a_saved_list(self) -> None:
        changes = fdl.Config(list, [fdl.Partial(use_gqa, num_kv_heads=1), fdl.Partial(make_large)])
        fiddlers = fdl.ordered_arguments(changes)
        cfg = debug()
        changed = apply_fiddlers(cfg, next(iter(fiddlers.values())))
        assert (attention(changed).num_kv_heads, changed.model.num_layers) == (1, 36)
        assert fingerprint(cfg) == fingerprint(debug())
        assert apply_fiddlers(cfg, [make_large]).model.hidden_dim == 1280

    def test_a_partial_of_a_fiddler_is_saved(self) -> None:
        again = load(dump(fdl.Partial(use_gqa, num_kv_heads=1)))
        assert attention(apply_fiddlers(debug(), [again])).num_kv_heads == 1

    def test_what_is_none(self) -> None:
        with pytest.raises(ConfigError, match="RoPE is not a fiddler: give a function"):
            apply_fiddlers(debug(), [fdl.Config(RoPE, head_dim=4)])
        with pytest.raises(ConfigError, match="Attention failed, so it may not"):
            apply_fiddlers(debug(), [fdl.Partial(Attention)])
