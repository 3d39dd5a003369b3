"""A fuzzer of the files that people send: valid ones, changed at random.

    python tests/fuzz.py --minutes 60

A reader may only return, or raise an error of fidgpt's own: in time, in little memory, and without
writing outside of its folder, starting a process or opening a connection.
"""

import argparse
import contextlib
import copy
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import nn

from fidgpt import curves, data, fiddlers, graph, interop
from fidgpt.compose.composition import compose
from fidgpt.compose.sources import load_file, read_text
from fidgpt.errors import is_user_error
from fidgpt.graph.difference.patches import apply_patch, dump_patch
from fidgpt.model.materialization import materialize
from fidgpt.runs.building import risks
from fidgpt.train import Checkpoints
from fidgpt.train.checkpoints import check_fit, manifest
from fidgpt.train.trackers.trackers import read_rows

SECONDS, MEGABYTES = 5.0, 500
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")
_REMOVES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "shutil.rmtree", "os.symlink")
_watched: list[tuple[Path, list[str]]] = []  # the folder of the file that is read now, and harm


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    folder, harm = _watched[-1]
    if event in _FORBIDDEN:
        harm.append(f"{event}{arguments!r:.200}")
    is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
    if event in ("os.remove", "os.rmdir") and arguments[-1] != -1:
        return  # in a folder that is open, by shutil.rmtree, which is audited itself
    if (is_write or event in _REMOVES) and isinstance(arguments[0], str | bytes | os.PathLike):
        path = Path(os.fsdecode(arguments[0])).absolute()
        is_own = path.is_relative_to(folder) or path == Path(os.devnull)
        if not is_own and "__pycache__" not in path.parts:  # of a module's first import
            harm.append(f"{event} {path}")


sys.addaudithook(_audit)


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Fail if what runs inside takes long, or much memory, or reaches outside of a folder."""
    harm: list[str] = []
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    _watched.append((folder.resolve(), harm))
    try:
        yield
    except Exception as error:
        if not is_user_error(error):
            raise
        assert len(str(error)) < 20_000, "an endless message"
    finally:
        _watched.pop()
    seconds = time.process_time() - begin
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert not harm, harm
    assert seconds < SECONDS, f"it took {seconds:.1f} s"
    assert taken < MEGABYTES, f"it took {taken:.0f} MB"


@dataclass(frozen=True)
class Target:
    """A file that fidgpt reads.

    Attributes:
        write: writes valid files into a folder, and returns the one that is changed.
        read: reads them from the folder.
        form: how the file is built: "json", "safetensors", or "bytes" of any other form.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    form: str = "json"


@cache
def _config() -> fdl.Config:
    return compose(["config:debug", "set:num_steps=2"]).config


def _changed() -> fdl.Config:
    changed = graph.clone(_config())
    fiddlers.use_gqa(changed, num_kv_heads=1)
    fiddlers.use_moe(changed)
    return changed


def _text(name: str, make: Callable[[], str]) -> Callable[[Path], Path]:
    made = cache(make)

    def write(folder: Path) -> Path:
        (folder / name).write_text(made(), encoding="utf-8")
        return folder / name

    return write


def _read_config(folder: Path) -> None:
    [path] = folder.glob("config.*")
    cfg = load_file(str(path))
    list(risks(cfg))
    graph.dump(cfg)
    graph.outline(cfg)


def _net() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    return net, torch.optim.AdamW(net.parameters())


def _checkpoint(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        net, optimizer = _net()
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        state = {"settings": {"a": (1, 2)}, "tokens": 5}
        saver = Checkpoints(every=1, keep_last=1)
        path = saver.save(folder, step=1, model=net, optimizer=optimizer, state=state)
        return path / name

    return write


def _restore(folder: Path) -> None:
    path = folder / "checkpoints" / manifest.name_of(1)
    with contextlib.suppress(KeyError, TypeError, AttributeError, OSError):
        # Whoever sends a checkpoint can compute its checksums too.
        body = manifest.read_manifest(path)
        seals = manifest.seal(path, body["files"])
        notes = {key: body[key] for key in ("reasons", "metrics")}
        manifest.write_manifest(path, step=body["step"], files=seals, notes=notes)
    net, optimizer = _net()
    for read in (
        lambda: check_fit(folder, None, model=net, optimizer=optimizer),
        lambda: Checkpoints(every=1, keep_last=1).restore(folder, model=net, optimizer=optimizer),
    ):
        with contextlib.suppress(manifest.CheckpointError):
            read()


def _model_of(folder: Path) -> Any:
    with torch.device("meta"):
        model = graph.build(graph.bind(interop.from_hf(str(folder))).model)
    materialize(model, device=torch.device("cpu"), seed=0)
    return model


@cache
def _hub() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        config, out = Path(place, "config.json"), Path(place, "out")
        sizes = {"vocab_size": 270, "n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 2}
        config.write_text(json.dumps({"model_type": "gpt2", **sizes}))
        model = _model_of(config.parent)
        tokenizer = data.BPETokenizer(vocab_size=270).build(["a few words of text. " * 9])
        interop.save_hf(model, out, seq_len=24, tokenizer=tokenizer, max_shard_size=6_000)
        return {path.name: path.read_bytes() for path in out.iterdir()}


def _write_hub(folder: Path) -> None:
    for name, content in _hub().items():
        (folder / name).write_bytes(content)


def _hub_file(suffix: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        _write_hub(folder)
        return next(path for path in sorted(folder.iterdir()) if path.name.endswith(suffix))

    return write


def _read_hub_config(folder: Path) -> None:
    interop.from_hf(str(folder))


@cache
def _hub_model() -> Any:
    with tempfile.TemporaryDirectory() as place:
        Path(place, "config.json").write_bytes(_hub()["config.json"])
        return _model_of(Path(place))


def _read_hub(folder: Path) -> None:
    interop.load_hf(_hub_model(), folder)


def _rows() -> str:
    rows = [{"step": i, "loss": 1.0 / i, "tokens": 8 * i, "validation/loss": 2} for i in (1, 2, 3)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def _read_metrics(folder: Path) -> None:
    read_rows(folder / "metrics.jsonl")
    runs = curves.read_runs([folder])
    for metric in curves.chosen_metrics(runs, []):
        for run in runs:
            curves.curve_of(run, metric, over="step")


_OVERRIDES = "config: debug\nseed: 1\nmodel: {num_layers: 3}\nuse: {loss: CrossEntropy}\n"
TARGETS = {
    "config": Target(_text("config.json", lambda: graph.dump(_changed())), _read_config),
    "config in YAML": Target(
        _text("config.yaml", lambda: graph.dump(_changed(), form="yaml")), _read_config, "bytes"
    ),
    "patch": Target(
        _text("p.patch", lambda: dump_patch((_config(), _changed()))),
        lambda folder: apply_patch(_config(), read_text(str(folder / "p.patch"))[1]),
    ),
    "overrides": Target(
        _text("o.yaml", lambda: _OVERRIDES),
        lambda folder: compose([f"yaml:{folder / 'o.yaml'}"]),
        "bytes",
    ),
    "manifest": Target(_checkpoint(manifest.MANIFEST), _restore),
    "optimizer state": Target(_checkpoint("optimizer.json"), _restore),
    "run state": Target(_checkpoint("state.json"), _restore),
    "weights": Target(_checkpoint("model.safetensors"), _restore, "safetensors"),
    "moments": Target(_checkpoint("optimizer.safetensors"), _restore, "safetensors"),
    "hub config": Target(_hub_file("config.json"), _read_hub_config),
    "hub index": Target(_hub_file(".index.json"), _read_hub),
    "hub weights": Target(_hub_file(".safetensors"), _read_hub, "safetensors"),
    "metrics": Target(_text("metrics.jsonl", _rows), _read_metrics, "bytes"),
}

_STRINGS = [
    *("", "../../etc/passwd", "/etc/passwd", "/dev/zero", "\x00", "\x1b]0;x\x07", "é" * 9, "💥"),
    *("os:system", "fidgpt.model:Attention", "fidgpt.tags:HiddenDim", "nan", "inf", "-1", "1e999"),
    *(
        "fidgpt.train:Mirror",
        "{num_steps}",
        "config: base",
        "model.safetensors",
        "F32",
        "BOOL",
        " ",
    ),
]
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63, 10**18, -(10**18), 10**400]),
    st.floats(allow_nan=False),
    st.sampled_from(_STRINGS),
    st.text(max_size=9),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items: Any = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else items:
        yield from _places(item, (*path, key))


def mutated(value: Any, draw: Callable[[Any], Any]) -> Any:
    """Return a JSON value with one change: a value replaced, removed, doubled, moved or renamed."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if len(places) == 1:
        return draw(_VALUES)
    *path, last = draw(st.sampled_from(places[1:]))
    holder = value
    for key in path:
        holder = holder[key]
    match draw(st.integers(0, 5)):
        case 0 | 1:
            holder[last] = draw(_VALUES)
        case 2:
            del holder[last]
        case 3:
            other = value
            for key in draw(st.sampled_from(places)):
                other = other[key]
            holder[last] = copy.deepcopy(other)
        case 4 if isinstance(holder, dict):
            holder[draw(st.sampled_from(_STRINGS) | st.text(max_size=9))] = holder.pop(last)
        case _:
            deep: Any = holder[last]
            for _ in range(draw(st.sampled_from([1, 50, 250]))):
                deep = [deep]
            holder[last] = deep
    return value


def _of_bytes(content: bytes, draw: Callable[[Any], Any]) -> bytes:
    at = draw(st.integers(0, len(content)))
    match draw(st.integers(0, 3)):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + draw(st.binary(max_size=9)) + content[at + 1 :]
        case 2:
            return content[:at] + draw(st.sampled_from([b"[", b'{"a":', b"- "])) * 100_000
        case _:
            return draw(st.binary(max_size=40))


def changed_file(content: bytes, form: str, draw: Callable[[Any], Any]) -> bytes:
    """Return other contents of a file: mostly well formed, so that more than a parser is tried."""
    if form == "bytes" or draw(st.integers(0, 4)) == 0:
        return _of_bytes(content, draw)
    head, rest = b"", b""
    if form == "safetensors":
        size = int.from_bytes(content[:8], "little")
        content, rest = content[8 : 8 + size], content[8 + size :]
    value = json.loads(content)
    for _ in range(draw(st.integers(1, 3))):
        value = mutated(value, draw)
    text = json.dumps(value).encode()
    if form == "safetensors":
        head = len(text).to_bytes(8, "little")
    return head + text + rest


def attack(name: str, *, examples: int, number: int | None = 0) -> None:
    """Read so many changes of a file; of number None, other ones each time.

    Raises:
        Exception: whatever a reader raised that is no error of fidgpt's own.
        AssertionError: it took too long or too much, or reached outside of its folder.
    """
    target = TARGETS[name]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list[Any](HealthCheck),
        phases=[Phase.generate],  # to shrink an example takes minutes
    )
    @given(st.data())
    def check(drawn: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder = Path(place)
            path = target.write(folder)
            content = changed_file(path.read_bytes(), target.form, drawn.draw)
            path.write_bytes(content)
            try:
                with watched(folder):
                    target.read(folder)
            except Exception as error:
                error.add_note(f"{name}: {content[:2000]!r}")
                raise

    _warm(target)
    check = seed(number)(check) if number is not None else check
    check()


@cache
def _warm(target: Target) -> None:
    """Read the file as it is: imports and buffers count for no change of it."""
    folder = Path(tempfile.mkdtemp())
    try:
        target.write(folder)
        target.read(folder)
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """Attack all files for some minutes; print each new failure. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", choices=TARGETS)
    arguments = parser.parse_args()
    end, failures, rounds = time.monotonic() + 60 * arguments.minutes, 0, 0
    names = [arguments.only] if arguments.only else [*TARGETS]
    while time.monotonic() < end:
        for name in names:
            try:
                attack(name, examples=100, number=time.time_ns() % 2**32)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                failures += 1
                print(f"== {name}", *getattr(error, "__notes__", ()), sep="\n")
                traceback.print_exc(limit=-5)
        rounds += 1
        print(f"{rounds} rounds of {len(names)} files, {failures} failures", flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
