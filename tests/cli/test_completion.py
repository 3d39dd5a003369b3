"""Completion: what may follow each kind of word, and that real shells put it in place."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli.completion import candidates, command_of
from fidgpt.cli.shells import read_line, script, written
from fidgpt.compose.spelling import KINDS

Index = dict[str, Any]
ROOT = Path(__file__).parents[2]
SHELLS = ("bash", "zsh", "fish")


def follow(index: Index, words: str) -> list[str]:
    """The words that may stand where `fidgpt-train WORDS` ends."""
    found = candidates(read_line(f"fidgpt-train {words}"), index)
    return [one.text + (" " if one.is_whole else "") for one in found]


def in_bash(index: Index, words: str, breaks: str = "") -> list[str]:
    line = read_line(f"fidgpt-train {words}")
    return written("bash", line.current, candidates(line, index), breaks)


class TestLine:
    """A line is read as a shell reads it."""

    @pytest.mark.parametrize(
        ("text", "words", "current"),
        [
            ("a b", ["a"], "b"),
            ("a b ", ["a", "b"], ""),
            (r"a 'b c' d\ e", ["a", "b c"], "d e"),
            ("a 'b c", ["a"], "b c"),
            (r'a "b\"c\d', ["a"], r'b"c\d'),
            ("x --config='set:a[0]'=b", ["x"], "--config=set:a[0]=b"),
            ("cd x && a b; c d", ["c"], "d"),
            ("a 'b;c' d", ["a", "b;c"], "d"),
            ("a ''", ["a"], ""),
            ("a '' ", ["a", ""], ""),
            ("a\\", [], "a"),
            ("", [], ""),
        ],
    )
    def test_words(self, text: str, words: list[str], current: str) -> None:
        line = read_line(text)
        assert (line.words, line.current.text) == (words, current)

    def test_an_open_quote_is_known(self) -> None:
        word = read_line("a --config='set:b").current
        assert (word.quote, word.before_quote) == ("'", "--config=")


class TestCommand:
    """Which lines are fidgpt's."""

    @pytest.mark.parametrize(
        ("line", "command"),
        [
            ("fidgpt-train", "train"),
            ("/usr/bin/fidgpt-sweep", "sweep"),
            ("A=1 python -u -m fidgpt.sample", "sample"),
            (f"python {shlex.quote(f'{ROOT}/train.py')}", "train"),
            (f"torchrun --nproc_per_node 2 {shlex.quote(f'{ROOT}/sweep.py')}", "sweep"),
        ],
    )
    def test_known(self, line: str, command: str) -> None:
        assert command_of([*shlex.split(line), "--x"]) == (command, ["--x"])

    def test_others(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text("import another")
        for line in ("python", "python x.py", f"python {tmp_path}/train.py", "python train.py.bak"):
            assert command_of(line.split()) is None


OPTIMIZERS = ["Adafactor", "Lion", "Muon", "adamw"]
COMPLETED = {
    "flags": ("--dry", ["--dry_run "]),
    "a flag with or without a value": ("--pri", ["--print ", "--print="]),
    "a value of a flag": ("--completion=z", ["--completion=zsh "]),
    "kinds": ("--config=se", ["--config=set:"]),
    "kinds, a word apart": ("--config fid", ["fiddler:"]),
    "configs": ("--config=config:gpt2_12", ["--config=config:gpt2_124m "]),
    "fiddlers": ("--config fiddler:use_rm", ["fiddler:use_rms_norm ", "fiddler:use_rms_norm("]),
    "that need arguments": ("--config fiddler:use_tex", ["fiddler:use_text("]),
    "arguments": (r"--config fiddler:use_text\(te", ["fiddler:use_text(text_field="]),
    "arguments not given": (r"--config 'fiddler:use_text(path=x, ", None),
    "tags": ("--config tag:Learn", ["tag:LearningRate="]),
    "the value of a tag": ("--config tag:LearningRate=", ["tag:LearningRate=0.001 "]),
    "a segment": ("--config set:mod", None),
    "segments with one way on": ("--config set:model.blo", None),
    "inside a part": ("--config set:model.blocks[0].mlp.b", ["set:model.blocks[0].mlp.bias="]),
    "a shared part": ("--config set:model.unembedding.weight.vo", None),
    "an entry": ("--config set:evaluators['validation'].ev", None),
    "bool": (
        "--config set:model.blocks[0].mlp.bias=",
        ["set:model.blocks[0].mlp.bias=True ", "set:model.blocks[0].mlp.bias=False "],
    ),
    "a value as it is": ("--config set:num_steps=", ["set:num_steps=450 "]),
    "everywhere": ("--config 'set:**.drop", ["set:**.dropout="]),
    "by tag": ("--config set:@Se", ["set:@Seed=", "set:@SeqLen="]),
    "a place to use a part": ("--config use:sched", ["use:schedule=", "use:schedule."]),
    "parts that fit": (
        "--config use:optimizer=",
        [f"use:optimizer={name}{end}" for name in OPTIMIZERS for end in "( "],
    ),
    "parts to set": ("--config set:optimizer=Li", ["set:optimizer=Lion(", "set:optimizer=Lion "]),
    "arguments of parts": (r"--config use:optimizer=adamw\(be", ["use:optimizer=adamw(betas="]),
    "back to the default": ("--config del:optimizer.be", ["del:optimizer.betas "]),
    "the left of a tie": ("--config tie:model.unembedding.w", None),
    "parts of a list": ("--list=parts:pre", ["--list=parts:precision "]),
    "whose value it is": ("--why=optimizer.l", ["--why=optimizer.lr "]),
    "nothing": ("--config set:nope", []),
    "nothing after what takes any number": ("--resume_step=", []),
}
SPECIAL = {
    "arguments not given": ["fiddler:use_text(path=x, text_field="],
    "a segment": ["set:model."],
    "segments with one way on": ["set:model.blocks[0]."],
    "a shared part": ["set:model.unembedding.weight.vocab_size="],
    "an entry": [],
    "the left of a tie": ["tie:model.unembedding.weight=", "tie:model.unembedding.weight."],
}


@pytest.mark.parametrize("case", COMPLETED)
def test_what_may_follow(kept_index: Index, case: str) -> None:
    words, expected = COMPLETED[case]
    found = follow(kept_index, words)
    if case in ("a segment", "segments with one way on"):
        (start,) = SPECIAL[case]
        assert len(found) > 1 and all(one.startswith(start) for one in found)
    else:
        assert sorted(found) == sorted(SPECIAL[case] if expected is None else expected)


def test_the_config_is_the_one_chosen_earlier(kept_index: Index) -> None:
    before = "--config=config:gpt2_124m --config=fiddler:use_gqa"
    (found,) = follow(kept_index, f"{before} --config=set:model.num_l")
    assert follow(kept_index, f"{before} {found}") == [f"{found}12 "]
    assert follow(kept_index, f"--config config:nope {found}") == []


def test_an_entry_of_a_dict_in_every_quote(kept_index: Index) -> None:
    path = "evaluators['validation'].every="
    assert follow(kept_index, """--config "set:evaluators['validation'].ev""") == [f"set:{path}"]
    single = in_bash(kept_index, """--config 'set:evaluators["validation"].ev""")
    assert single[:1] == ["set:" + path.replace("'", '"')]
    bare = in_bash(kept_index, r"--config set:evaluators[\'validation\'].ev")
    assert bare == [path.replace("'", r"\'")]


def test_axes_have_several_values(kept_index: Index) -> None:
    def axis(text: str) -> list[str]:
        return [one.text for one in candidates(read_line(f"fidgpt-sweep {text}"), kept_index)]

    assert axis("--sweep=config:base,deb") == ["--sweep=config:base,debug"]
    assert axis("--sweep=tag:Seed=3,") == ["--sweep=tag:Seed=3,0"]
    assert axis("--sweep=fiddler:use_rope,use_by") == ["--sweep=fiddler:use_rope,use_bytes"]


def test_files(kept_index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "two.json").touch()
    (tmp_path / ".hidden").touch()
    assert follow(kept_index, "--config=config_file:") == ["--config=config_file:runs/"]
    assert follow(kept_index, "--config config_file:runs/") == [
        "config_file:runs/one/",
        "config_file:runs/two.json ",
    ]
    assert follow(kept_index, "--resume=runs/") == ["--resume=runs/one/"]
    assert follow(kept_index, "--config patch:.h") == ["patch:.hidden "]
    assert follow(kept_index, "--resume=nowhere/") == []


class TestBash:
    """Readline replaces only what follows the last break or an open quote."""

    def test_a_bare_word(self, kept_index: Index) -> None:
        assert in_bash(kept_index, "--config=config:gpt2_12") == ["gpt2_124m "]
        assert in_bash(kept_index, "--config=se") == ["set:"]
        assert in_bash(kept_index, "--conf") == ["--config="]

    def test_breaks_are_the_users(self, kept_index: Index) -> None:
        assert in_bash(kept_index, "--config=config:gpt2_12", " \t\n") == [
            "--config=config:gpt2_124m "
        ]

    def test_in_a_quote(self, kept_index: Index) -> None:
        assert in_bash(kept_index, "--config='config:gpt2_12") == ["config:gpt2_124m"]
        assert in_bash(kept_index, '"--config=config:gpt2_12') == ["--config=config:gpt2_124m"]

    def test_a_quote_stays_open_where_there_is_more_to_type(self, kept_index: Index) -> None:
        found = in_bash(kept_index, "--config='fiddler:use_tex")
        assert found == ["fiddler:use_text(", "fiddler:use_text(..."]
        assert in_bash(kept_index, "--config=fiddler:use_tex") == [r"use_text\("]

    def test_what_bash_would_read_otherwise_is_escaped(self, kept_index: Index) -> None:
        assert in_bash(kept_index, "--config=fiddler:use_tex") == [r"use_text\("]


def in_shell(shell: str, line: str) -> list[str]:
    """What a real shell is offered for a line, by the script that we give it."""
    ask = {
        "bash": 'COMP_LINE=$LINE COMP_POINT=${#LINE}; _fidgpt_python; printf "%s\\n" '
        '"${COMPREPLY[@]}"',
        "zsh": "compadd() { [[ $@ == *open* ]] && print -rl -- $open || print -rl -- $whole }; "
        "LBUFFER=$LINE; _fidgpt_python",
        "fish": "complete -C $LINE",
    }
    before = {"zsh": "compdef() { }\n"}
    done = subprocess.run(
        [shell, "-c", f"{before.get(shell, '')}{script(shell)}\n{ask[shell]}"],
        cwd=ROOT,
        env=os.environ | {"LINE": line},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.usefixtures("kept_index")
@pytest.mark.parametrize(
    "shell",
    [
        pytest.param(one, marks=pytest.mark.skipif(not shutil.which(one), reason=f"no {one} here"))
        for one in SHELLS
    ],
)
class TestShells:
    """The scripts, in the shells themselves."""

    def test_complete_a_line(self, shell: str) -> None:
        (found,) = in_shell(shell, "python train.py --config=config:gpt2_12")
        bare = {"bash": "gpt2_124m ", "zsh": "--config=config:gpt2_124m"}
        told = "--config=config:gpt2_124m\tThe smallest, 124 million parameters."
        assert found == bare.get(shell, told)

    def test_complete_inside_a_quote(self, shell: str) -> None:
        found = in_shell(shell, "python train.py '--config=set:model.blocks[0].mlp.")
        assert len(found) >= 3
        assert all(one.startswith("--config=set:model.blocks[0].mlp.") for one in found)


@pytest.mark.usefixtures("kept_index")
def test_readline_puts_it_in_place() -> None:
    pexpect = pytest.importorskip("pexpect")
    python = shlex.quote(sys.executable)
    variables = os.environ | {"TERM": "dumb", "INPUTRC": "/dev/null", "PS1": "$ "}
    with pexpect.spawn(
        "bash", ["--norc", "-i"], env=variables, cwd=str(ROOT), encoding="utf-8", timeout=30
    ) as bash:
        bash.sendline("bind 'set enable-bracketed-paste off'")
        bash.sendline(f'eval "$({python} train.py --completion=bash)"; echo re"ad"y')
        bash.expect("ready")
        for typed, rest in {
            "--config=config:gpt2_12": "4m ",
            "--config=set:optimizer.l": "r=",
            "'--config=fiddler:use_tex": "t(",
        }.items():
            bash.send(f"python train.py {typed}")
            bash.expect_exact(typed)
            bash.send("\t")
            bash.expect_exact(rest)
            bash.send("\x15")  # empties the line


def test_every_kind_of_directive_is_offered() -> None:
    assert follow({}, "--config=") == [f"--config={kind}:" for kind in KINDS]


def test_scripts_ask_this_python() -> None:
    for shell in SHELLS:
        assert f"{shlex.quote(sys.executable)} -P -m fidgpt.cli.completion {shell} " in script(
            shell
        )


@pytest.mark.usefixtures("kept_index")
def test_a_line_of_somebody_else_is_left_alone() -> None:
    command = [sys.executable, "-m", "fidgpt.cli.completion", "bash", "python other.py --"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_index_is_plain(kept_index: Index) -> None:
    assert json.loads(json.dumps(kept_index)) == kept_index
