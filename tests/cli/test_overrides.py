"""Overrides from a YAML file: what stands in it, what sweeps read, and how mistakes are shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import sweep
from fidgpt.compose import report
from fidgpt.compose.composition import Composition, compose
from fidgpt.compose.index import base_of
from fidgpt.compose.report import messages_of
from fidgpt.graph import ConfigError, check_and_bind, dump, fingerprint, load, why_text
from fidgpt.graph.provenance import dump_provenance, restore_provenance
from fidgpt.runs.directories import name_of_base
from fidgpt.sweep import Sweep

from .conftest import Command


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(text: str, *directives: str) -> Composition:
    Path("mine.yaml").write_text(text, encoding="utf-8")
    return compose(["yaml:mine.yaml", *directives])


def message_of(text: str | bytes) -> str:
    Path("mine.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        compose(["yaml:mine.yaml"])
    return str(caught.value)


WHOLE = """
include: folder/common.yaml
fiddler:
  - use_gelu
  - use_gqa: {num_kv_heads: 1}
tie: {model.unembedding.weight: model.embedding.weight}
num_steps: 2**5
model:
  hidden_dim: 64
  blocks:
    - attention: {window: 16}
      dropout: 0.1
  "**.eps": 1.0e-4
  norm: {use: OffsetRMSNorm, eps: 1e-3}
optimizer: {betas: [0.9, 0.99], lr*: 0.5}
samples:
  prompts: [hello, "a, b", "1", '{x', 2, "a, f(x)", "{a}, b", "it's f(x)", "he's {a}", "f(x), g(y)"]
schedule: {use: optim.Constant, warmup_steps: "{num_steps} // 4"}
evaluators.validation.every: ~
"evaluators+": {more: "Validation(data=HeldOut)"}
trackers+: [TensorBoard]
tag: {LearningRate*: 4, Seed: 3}
"""
AS_DIRECTIVES = [
    *("config:debug", "tag:Dropout=0.2", "fiddler:use_gelu", "fiddler:use_gqa(num_kv_heads=1)"),
    *("tie:model.unembedding.weight=model.embedding.weight", "set:num_steps=32"),
    *("set:model.hidden_dim=64", "set:model.blocks[0].attention.window=16"),
    *("set:model.blocks[0].dropout=0.1", "set:model.**.eps=1e-4"),
    *("use:model.norm=OffsetRMSNorm", "set:model.norm.eps=1e-3"),
    *("set:optimizer.betas=(0.9, 0.99)", "set:optimizer.lr*=0.5"),
    "set:samples.prompts=['hello', 'a, b', '1', '{x', '2', 'a, f(x)', '{a}, b', "
    "\"it's f(x)\", \"he's {a}\", 'f(x), g(y)']",
    *("use:schedule=optim.Constant", "set:schedule.warmup_steps={num_steps} // 4"),
    "set:evaluators.validation.every=None",
    "set:evaluators+={'more': Validation(data=HeldOut)}",
    *("set:trackers+=[TensorBoard]", "tag:LearningRate*=4", "tag:Seed=3"),
]


def test_a_file_means_what_its_directives_would() -> None:
    Path("folder").mkdir()
    Path("folder/common.yaml").write_text(
        "config: debug\ninclude: [more.yaml, ../folder/more.yaml]\n"
    )
    Path("folder/more.yaml").write_text("tag:\n  Dropout: 0.2\n")
    text = WHOLE.replace("'{x', 2]", "'{x', '2']")
    assert fingerprint(made(text).config) == fingerprint(compose(AS_DIRECTIVES).config)
    assert base_of(["yaml:mine.yaml"]) == "config:debug"
    # On another base, and one after another.
    config = made("num_steps: 5\n").config
    assert fingerprint(config) == fingerprint(compose(["set:num_steps=5"]).config)
    config = compose(["config:debug", "yaml:mine.yaml", "set:num_steps*=2"]).config
    assert config.num_steps == 10
    assert compose(["yaml:mine.yaml", "yaml:mine.yaml"]).config.num_steps == 5
    # Spaces make no text of a number.
    assert made("fiddler: {use_wsd: {decay_ratio: 1 / 5}}\n").config.schedule.decay == 0.2


def test_a_value_knows_its_file_and_line() -> None:
    one = made("config: debug\n\nmodel:\n  num_layers: 3\nfiddler: use_gelu\n")
    assert "3  set by directive 1: set:model.num_layers=3 (mine.yaml:4)\n" in one.why(
        "model.num_layers"
    )
    assert "directive 1: fiddler:use_gelu (mine.yaml:5, " in one.why("model.blocks[0].mlp")
    assert one.directives == ["config:debug", "set:model.num_layers=3", "fiddler:use_gelu"]
    # The same line of another file is another source.
    Path("other.yaml").write_text("model:\n  num_layers: 3\n")
    other = compose(["yaml:other.yaml"])
    assert "(other.yaml:2)" in other.why("model.num_layers")


def test_the_history_of_a_run_keeps_the_lines() -> None:
    one = made("config: debug\nnum_steps: 1\n")
    text = dump_provenance(one.config)
    assert json.loads(text)["num_steps"][-1] == {
        "value": "1",
        "by": {"text": "set:num_steps=1", "kind": "directive", "number": 1},
        "where": "mine.yaml:2",
    }
    again = load(dump(one.config))
    restore_provenance(again, text, source="run")
    why = why_text(again, "num_steps")
    assert "1  set by run: directive 1: set:num_steps=1 (mine.yaml:2)" in why
    assert name_of_base(["yaml:dir/mine.yaml", "set:seed=1"]) == "mine"


WRONG = [
    ("num_step: 3", ["num_step: 3", "^^^^^^^^", "Trainer has no parameter 'num_step'. Did you"]),
    ("fiddler: use_gqaa", ["fiddler: use_gqaa", "         ^^^^^^^^", "Did you mean use_gqa?"]),
    ("seed: 1\nseed: 2", ["seed: 2", "^^^^", "the key 'seed' occurs twice: remove one of them."]),
    ("a: &x 1\nb: *x", ["a: &x 1", "   ^", "an alias of this value has no meaning"]),
    ("seed: 1\nyaml: x.yaml", ["yaml: x.yaml", "^^^^", "include: FILE."]),
    (
        "format: fidgpt.config",
        ["format:", "", "a whole config, for config_file:"],
    ),
    ("seed: 1\nconfig: debug\ninclude: base.yaml", ["config: debug", "^", "must come first"]),
]


@pytest.mark.parametrize(("text", "shown"), WRONG, ids=[text[:30] for text, _ in WRONG])
def test_a_mistake_shows_its_line_and_piece(text: str, shown: list[str]) -> None:
    Path("base.yaml").write_text("config: base\n")
    head, line, carets, *message = message_of(text).splitlines()
    assert head.startswith("mine.yaml:") and head.endswith(" is wrong:")
    assert line.startswith(f"  {shown[0]}")
    assert carets.startswith(f"  {shown[1]}") and set(carets) == {" ", "^"}
    assert shown[2] in "\n".join(message) and len(message) < 5


def test_all_mistakes_are_shown_together_with_those_of_constructors() -> None:
    Path("mine.yaml").write_text(
        "config: debug\nmodel: {hidden_dim: 30}\nnum_step: 3\nseed: x\nnum_steps: 3\n"
        "schedule:\n  warmup_steps: 5\n"
    )
    with pytest.raises(ConfigError) as caught:
        compose(["yaml:mine.yaml"], other_errors=report.other_errors)
    text = str(caught.value)
    heads = [line for line in text.splitlines() if line.endswith((" wrong:", " conflict:"))]
    assert [line.split()[0] for line in heads] == [f"mine.yaml:{n}" for n in (3, 4, 2, 5)]
    assert heads[-1] == "mine.yaml:5 and mine.yaml:7 conflict:"
    one = made("config: debug\nnum_steps: 3\n", "set:schedule.warmup_steps=5")
    with pytest.raises(ConfigError) as caught:
        check_and_bind(one.config)
    (message,) = messages_of(one, caught.value)
    assert message.startswith("mine.yaml:2 and directive 2 conflict:\n  num_steps: 3\n  ^")


SWEEP = """
config: debug
num_steps: 1
samples: null
sweep:
  optimizer.lr: [1e-3, 3e-3]
  tag: {Dropout: "lin(0, 0.2, 3)"}
  model:
    blocks[0]: {mlp.ffn_dim: [32, 64]}
  fiddler: [use_rope, use_gqa(num_kv_heads=1)]
  repeat: seed:2
"""
TYPED = [
    *("optimizer.lr=1e-3,3e-3", "tag:Dropout=lin(0, 0.2, 3)"),
    *("model.blocks[0].mlp.ffn_dim=32,64", "fiddler:use_rope,use_gqa(num_kv_heads=1)"),
]


def test_a_sweep_reads_its_section(command: Command) -> None:
    Path("mine.yaml").write_text(SWEEP)
    read = Sweep("yaml:mine.yaml")
    texts = [one.text for one in read.items if not isinstance(one, str)]
    assert texts == [
        f"--sweep={one if ':' in one.partition('=')[0] else f'set:{one}'}" for one in TYPED
    ] + ["--repeat=seed:2"]
    assert read.items[:3] == ["config:debug", "set:num_steps=1", "set:samples=None"]
    one = compose(["yaml:mine.yaml"])
    assert report.report(one).warnings[0] == (
        "the sweep in mine.yaml:6 is for sweep.py: it is left out."
    )
    Path("typed.yaml").write_text("sweep: ['tag:Dropout=0,0.1']\n")
    done = command(sweep.main, "--config=config:debug", "--config=yaml:typed.yaml", "--print")
    assert done.status == 0 and "2 points" in done.out, done.err
    Path("typed.yaml").write_text("seed: 1\n")
    done = command(sweep.main, "--config=yaml:typed.yaml", "--print")
    assert "name an axis" in done.err


def test_a_wrong_axis_shows_its_line() -> None:
    Path("mine.yaml").write_text("sweep: {seed: [1, x]}")
    with pytest.raises(ConfigError, match="mine.yaml:1 is wrong"):
        _: Any = Sweep("yaml:mine.yaml").points


def test_null_is_no_text() -> None:
    with pytest.raises(ConfigError, match="None is not a str"):
        made("config: debug\nsamples: {prompts: [~, a]}\n")
    text = made("config: debug\nsamples: {prompts: ['None', a]}\n")
    assert text.config.samples.prompts == ["None", "a"]
