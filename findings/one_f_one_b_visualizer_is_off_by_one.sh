#!/usr/bin/env bash
# torch 2.13.0: `get_schedule_ops("1F1B", 4, 4)` of torch.distributed.pipelining lists, for the last of
# four stages, forward passes of micro-batches 1 to 4 of a batch whose micro-batches are 0 to 3. The
# list cannot be executed; those of the other schedules can.
#
# Seen on Linux, Python 3.11: 3F1 3B0 3F2 3B1 3F3 3B2 3F4 3B3 3REDUCE_GRAD
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'PYTHON'
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

print(*(action for action in get_schedule_ops("1F1B", 4, 4)[-1] if action is not None))
PYTHON
seen=$("$folder/venv/bin/python" "$folder/run.py")
echo "$seen"
test "$seen" = "3F1 3B0 3F2 3B1 3F3 3B2 3F4 3B3 3REDUCE_GRAD"
