#!/usr/bin/env bash
# tokenizers 0.23.3 reads the scores of a Unigram from tokenizer.json with an error of one unit in
# the last place, although the file holds them exactly. A tokenizer that was trained and its own file,
# read back, may then choose differently between segmentations that are equally likely.
#
# Seen on Linux, Python 3.11; the first number varies from run to run, as what is trained does:
# 300 scores, 10 changed by the first reading, 0 by the second
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tokenizers==0.23.3
cat >"$folder/scores.py" <<'PYTHON'
import json
import pathlib
import sysconfig

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

library = pathlib.Path(sysconfig.get_paths()["stdlib"])
text = "".join((library / name).read_text() for name in ("argparse.py", "ast.py", "decimal.py"))
tokenizer = Tokenizer(models.Unigram())
tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
trainer = trainers.UnigramTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>")
tokenizer.train_from_iterator([text], trainer)
files = [tokenizer.to_str()]
for _ in range(2):
    files.append(Tokenizer.from_str(files[-1]).to_str())
scores = [dict(json.loads(file)["model"]["vocab"]) for file in files]
first, second = (sum(one[token] != other[token] for token in one) for one, other in zip(scores, scores[1:]))
furthest = max(abs(scores[0][token] / scores[1][token] - 1) for token in scores[0] if scores[1][token])
print(f"{len(scores[0])} scores, {first} changed by the first reading, {second} by the second")
assert first > 0 and second == 0 and furthest < 1e-15, (first, second, furthest)
PYTHON
"$folder/venv/bin/python" "$folder/scores.py"
