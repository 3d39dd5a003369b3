"""Train small configs with this checkout and with another commit, and compare all metrics.

    python benchmarks/compare_commits.py                           # beside the commit REFERENCE
    python benchmarks/compare_commits.py --only muon fsdp --commit=main --jobs=2
    python benchmarks/compare_commits.py --other=path/to/a/checkout

A change that should not affect numbers leaves every row of `metrics.jsonl` bit-identical on one
thread of one machine. The exit status is 1 if any number differs. The slow case `compile` runs only
if `--only` selects it. Do not edit the checkout during the comparison.
"""

import argparse
import concurrent.futures
import contextlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
REFERENCE = "25c5fec"
MEASURED = (
    "seconds/",
    "goodput/",
    "slowest/",
    "step_seconds",
    "tokens_per_second",
    "utilisation",
    "memory",
)  # vary between runs


@dataclass(frozen=True)
class Case:
    """A run to compare.

    Attributes:
      directives: values of `--config`.
      processes: number of processes.
      stopped_after: step after which the run is stopped and resumed.
    """

    directives: list[str]
    processes: int = 1
    stopped_after: int | None = None


def small(config: str, *directives: str, layers: int = 2) -> list[str]:
    """Return directives that shrink a named config to train within a second."""
    return [
        f"config:{config}",
        "fiddler:use_bytes",
        "fiddler:use_text(text.jsonl)",
        "fiddler:smoke_test(num_steps=20)",
        "fiddler:use_float32",
        "set:batch_size=8",
        "set:model.hidden_dim=64",
        f"set:model.num_layers={layers}",
        *directives,
    ]


def base(*directives: str) -> list[str]:
    """Return directives of a small dense model."""
    return small("base", "tag:HeadDim=16", *directives)


HEADS = ("set:model.**.num_heads=4", "set:model.**.num_kv_heads=2", "tag:HeadDim=16")
EXPERTS = ("set:model.**.num_experts=4", "set:model.**.top_k=2", "set:model.**.ffn_dim=48")
LATENT = (
    "set:model.**.kv_rank=24",
    "set:model.**.num_heads=4",
    "set:model.**.rope_head_dim=8",
    "set:model.**.value_head_dim=12",
    "set:model.**.rope.head_dim=8",
    "set:model.**.num_groups=2",
    "set:model.**.top_groups=1",
    "tag:HeadDim=16",
)
MIXED = 'fiddler:use_mixture({"more": "text.jsonl"}, {"own": 0.7, "more": 0.3}, {0.5: {"more": 1}})'

CASES = {
    "dense": Case(base()),
    "dropout": Case(base("tag:Dropout=0.1")),
    "bfloat16": Case(base("use:precision=BFloat16")),
    "float16": Case(base("fiddler:use_float16(init_scale=1e9)")),  # steps that overflow at first
    "accumulation": Case(base("set:micro_batch_size=2")),
    "gpt2": Case(small("gpt2_124m", "tag:HeadDim=16")),
    "llama": Case(small("llama3_2_1b", *HEADS)),
    "gemma2": Case(small("gemma2_2b", *HEADS, "set:model.**.window=8")),
    "gemma3": Case(small("gemma3_1b", *HEADS, "set:model.blocks[:5].attention.window=8", layers=7)),
    "gpt_oss": Case(small("gpt_oss_20b", *HEADS, *EXPERTS, "set:model.blocks[0].**.window=8")),
    "mixtral": Case(small("mixtral_8x7b", *HEADS, *EXPERTS)),
    "qwen3_moe": Case(small("qwen3_30b_a3b", *HEADS, *EXPERTS)),
    "deepseek": Case(small("deepseek_v3", *LATENT, *EXPERTS, layers=4)),
    "latent": Case(base("fiddler:use_mla", "fiddler:use_moe(num_experts=4)")),
    "capacity": Case(base("fiddler:use_moe(num_experts=4)", "fiddler:use_expert_capacity")),
    "features": Case(base("fiddler:use_softcap", "fiddler:use_sinks", "fiddler:use_qk_norm")),
    "positions": Case(base("fiddler:use_alibi", "fiddler:use_gqa(num_kv_heads=2)")),
    "values": Case(base("fiddler:use_value_embeddings", "fiddler:untie_embeddings")),
    "shared": Case(base("fiddler:share_blocks", "fiddler:use_parallel_block")),
    "mtp": Case(base("fiddler:use_mtp")),
    "lora": Case(base("fiddler:use_lora(rank=4)")),
    "mup": Case(base("fiddler:use_mup(base_dim=32, base_head_dim=16)")),
    "packing": Case(base("fiddler:use_packing", "fiddler:use_document_mask")),
    "texts": Case(base(MIXED, "fiddler:use_fim", "fiddler:shuffle_documents")),
    "growing": Case(base("fiddler:grow_batch(over=10)", "fiddler:grow_seq_len(over=10)")),
    "losses": Case(base("fiddler:use_z_loss", "fiddler:use_label_smoothing")),
    "fused_loss": Case(base("fiddler:use_fused_loss")),
    "recompute": Case(base("fiddler:use_recompute", "tag:Dropout=0.1")),
    "compile": Case(base("fiddler:use_compile")),
    "muon": Case(base("fiddler:use_muon", "fiddler:use_wsd")),
    "adafactor": Case(base("fiddler:use_adafactor", "fiddler:use_layer_decay")),
    "lion": Case(base("fiddler:use_lion", "fiddler:use_weight_decay_schedule")),
    "sgd": Case(base("fiddler:use_sgd", "fiddler:use_value_clipping(max_grad_value=0.01)")),
    "ema": Case(base("fiddler:use_ema(beta=0.9)", "set:evaluators.validation.every=5")),
    "guard": Case(base("fiddler:use_skip_step(window=4, num_deviations=0.5)")),
    "evaluation": Case(
        base("fiddler:use_samples(every=5)", "fiddler:use_step_meters(every=5)", "set:seed=1")
    ),
    "resumed": Case(
        base("fiddler:use_muon", "fiddler:use_ema(beta=0.9)", "fiddler:grow_batch"), stopped_after=9
    ),
    "ddp": Case(base("tag:Dropout=0.1", "set:micro_batch_size=2"), processes=2),
    "fsdp": Case(base("fiddler:use_fsdp", "fiddler:use_muon"), processes=2),
    "fsdp_experts": Case(
        base("fiddler:use_fsdp", "fiddler:use_moe(num_experts=4)"), processes=2, stopped_after=9
    ),
}

SLOW = {"compile"}

Rows = list[dict[str, float]]


@dataclass(frozen=True)
class Tree:
    """A checkout, and the directory where its runs are written."""

    root: Path
    directory: Path

    def rows(self, name: str) -> Rows | str:
        """Return the rows of a case's metrics, or the end of its output if it failed."""
        case = CASES[name]
        flags = [f"--config={one}" for one in case.directives]
        commands = [[*flags, f"--run_dir={name}"]]
        if case.stopped_after:
            commands = [[*commands[0], f"--until_step={case.stopped_after}"], [f"--resume={name}"]]
        launch = ["-m", "torch.distributed.run", "--standalone"]
        launch = [*launch, f"--nproc-per-node={case.processes}"] if case.processes > 1 else []
        variables = {"PYTHONPATH": str(self.root / "src"), "FIDGPT_CACHE": "cache"}
        for arguments in commands:
            done = subprocess.run(
                [sys.executable, *launch, str(self.root / "train.py"), *arguments],
                cwd=self.directory,
                env=os.environ | variables | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                return done.stdout[-3000:]
        lines = (self.directory / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


def compared(name: str, trees: list[Tree]) -> tuple[bool, str]:
    """Return whether a case is the same in both trees, and a line of the table."""
    begin = time.monotonic()
    new, old = (tree.rows(name) for tree in trees)
    seconds = f"{time.monotonic() - begin:4.0f} s"
    if isinstance(new, str) or isinstance(old, str):
        ends = {"here": new, "there": old}
        words = [f"{where}:\n{rows}" for where, rows in ends.items() if isinstance(rows, str)]
        return False, textwrap.indent("\n".join([f"{name} failed", *words]), "    ")
    if wrong := differences(new, old):
        return False, f"{name:13} {seconds}  DIFFERS: {wrong[0]}, and {len(wrong) - 1} more"
    count = sum(len(measured(row)) for row in new)
    return True, f"{name:13} {seconds}  {len(new)} steps, {count} numbers, loss {new[-1]['loss']!r}"


def measured(row: dict[str, float]) -> dict[str, float]:
    """Return the numbers of a row that do not depend on the machine's speed."""
    return {key: value for key, value in row.items() if not key.startswith(MEASURED)}


def differences(new: Rows, old: Rows) -> list[str]:
    """Return each number that differs or is missing on one side."""
    if len(new) != len(old):
        return [f"{len(new)} steps here and {len(old)} there"]
    wrong: list[str] = []
    new, old = [measured(row) for row in new], [measured(row) for row in old]
    for step, (one, other) in enumerate(zip(new, old, strict=True), start=1):
        for key in sorted((one | other).keys()):
            if repr(one.get(key)) != repr(other.get(key)):
                wrong.append(f"step {step} {key}: {one.get(key)} here, {other.get(key)} there")
    return wrong


@contextlib.contextmanager
def checkout(commit: str, directory: Path) -> Iterator[Path]:
    """Check out a commit in a directory, which is removed at the end."""
    git = ["git", "-C", str(HERE), "worktree"]
    subprocess.run([*git, "add", "--detach", "--quiet", str(directory), commit], check=True)
    try:
        yield directory
    finally:
        subprocess.run([*git, "remove", "--force", str(directory)], check=True)


def main() -> int:
    """Compare the selected cases and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commit", default=REFERENCE, help="commit to compare with")
    parser.add_argument("--other", type=Path, help="checkout to compare with, instead of a commit")
    quick = [name for name in CASES if name not in SLOW]
    parser.add_argument("--only", nargs="+", choices=CASES, default=quick, help="some cases")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        other = options.other or stack.enter_context(checkout(options.commit, folder / "commit"))
        trees = [Tree(HERE, folder / "new"), Tree(other.resolve(), folder / "old")]
        source = inspect.getsource(argparse)
        texts = [source[start : start + 700] for start in range(0, len(source), 700)]
        for tree in trees:
            tree.directory.mkdir()
            lines = (json.dumps({"text": text}) + "\n" for text in texts)
            (tree.directory / "text.jsonl").write_text("".join(lines), encoding="utf-8")
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(options.jobs))
        same = True
        for is_same, line in pool.map(lambda name: compared(name, trees), options.only):
            print(line, flush=True)
            same &= is_same
    print("Every number is the same." if same else "Numbers differ.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
