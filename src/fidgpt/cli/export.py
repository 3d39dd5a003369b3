"""Save the model of a run for transformers: `fidgpt export runs/NAME DIRECTORY`.

`fidgpt export runs/NAME MODEL.gguf` writes one file, for llama.cpp.
"""

from pathlib import Path
from typing import Any

from absl import flags

from fidgpt.cli import app, trained
from fidgpt.errors import ConfigError

FLAGS = flags.FLAGS

flags.DEFINE_float("shard_gb", 5.0, "Maximum size of a weights file in gigabytes.", 0.001)
flags.DEFINE_string(
    "model_type",
    None,
    "Family of the model in transformers, such as phi3, where several compute the same.",
)
flags.DEFINE_enum(
    "gguf_type", None, ["f32", "f16", "bf16", "q8_0"], "Number format of a GGUF file's matrices."
)
flags.DEFINE_string("push", None, "Upload the directory to this repository of the hub: OWNER/NAME.")
flags.DEFINE_boolean("public", False, "Create the repository of --push as a public one.")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Write config.json, the weights and the tokenizer.

    Raises:
      ConfigError: not a run and a directory were named, or no family of the hub computes what the
        model does.
      RunError: there is no run.
      OSError: the directory cannot be written.
    """
    # Late: --help loads no torch.
    from fidgpt.interop import save_gguf, save_hf
    from fidgpt.interop.hugging_face.files import is_hub_directory

    if len(arguments) != 2:
        raise ConfigError(
            "name a run and a directory, or a GGUF file: fidgpt.export runs/NAME DIRECTORY"
        )
    path, target = map(Path, arguments)
    is_gguf = target.suffix == ".gguf"
    for name in ("push", "shard_gb") if is_gguf else ("gguf_type",):
        if FLAGS[name].present:
            raise ConfigError(f"--{name} has no effect with {target}: remove it.")
    trainer, tokenizer = trained.load_trained(path)
    origin = getattr(trainer.weights, "keywords", {}).get("directory")
    if is_hub_directory(path):  # whose weights have lost nothing
        origin = path
        for parameter in trainer.model.parameters():
            parameter.data = parameter.data.to(trainer.precision.dtype)
    shared: Any = {
        "seq_len": trainer.seq_len,
        "tokenizer": tokenizer,
        "model_type": FLAGS.model_type,
    }
    if is_gguf:
        architecture = save_gguf(trainer.model, target, dtype=FLAGS.gguf_type, **shared)
        print(f"{target} holds a {architecture} of llama.cpp.")
        return
    source = origin if origin and is_hub_directory(Path(origin)) else None
    size = int(FLAGS.shard_gb * 1e9)
    architecture = save_hf(trainer.model, target, max_shard_size=size, source=source, **shared)
    print(f"{target} holds a {architecture} of transformers.")
    if FLAGS.push:
        print(_push(target, FLAGS.push))


def _push(directory: Path, name: str) -> str:
    """Upload a directory to a repository of the hub, and return its address.

    Raises:
      DataError: huggingface_hub is not installed.
      RunError: the hub refuses it.
    """
    from fidgpt.data.errors import import_extra
    from fidgpt.train import RunError

    hub = import_extra("huggingface_hub", extra="hub", purpose="--push")
    try:
        address = hub.create_repo(name, private=not FLAGS.public, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=directory)
    except Exception as error:  # no login, no network, or a name that is none
        reason = " ".join(str(error).split())
        raise RunError(f"--push={name}: {directory} was not uploaded: {reason}") from error
    return str(address)
