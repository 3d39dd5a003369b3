#!/usr/bin/env bash
# Everything that is to be known of a GPU, on one page: correctness beside the CPU, training steps
# and generation beside peers, memory beside the plan, and where a step spends its time.
#
#   benchmarks/gpu.sh                               # writes gpu.md
#   PEERS=/tmp/peers/bin/python benchmarks/gpu.sh   # with transformers from there
#   DEVICE=cpu PAGE=/tmp/page.md benchmarks/gpu.sh  # a rehearsal without a GPU, with small shapes
#
# A part that fails is noted on the page, and the others go on; the exit status is then 1.
set -u
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-.venv/bin/python}
device=${DEVICE:-cuda}
page=${PAGE:-gpu.md}
peers=${PEERS:-$python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

if ! "$python" -c "import sys, torch; sys.exit(not ('$device' == 'cpu' or torch.cuda.is_available()))"
then
    echo "$0: torch finds no GPU here; DEVICE=cpu rehearses this with small shapes." >&2
    exit 1
fi

part() {  # TITLE COMMAND...: run a command, whose output is a section of the page
    local title=$1
    shift
    echo "$title: $*" >&2
    printf '\n## %s\n\n    %s\n\n' "$title" "$*" >> "$page"
    if ! "$@" >> "$page" 2> "$folder/errors"; then
        failed=1
        printf '\n**This failed:** `%s`\n' "$(grep -v '^ *$' "$folder/errors" | tail -n 1)" >> "$page"
    fi
}

profiled() {  # DIRECTIVE...: where a step spends its time
    "$python" train.py "${@/#/--config=}" --config=fiddler:use_profiler \
        --run_dir="$folder/profiled" > /dev/null || return 1
    echo '```'
    head -n 30 "$folder/profiled/profile/rank0.txt"
    echo '```'
}

shapes=(gpt2_124m_1024 llama3_8b_slice) step=(--batch_size=32) rounds=9
configs=(gpt2_124m llama3_2_1b) size=(set:batch_size=8) tokens=256 dtypes=(bfloat16 float32) writers=()
profile=(config:gpt2_124m fiddler:use_bytes set:vocab_size=50257 set:batch_size=32 set:num_steps=30)
if [ "$device" = cpu ]; then
    shapes=(gpt2_1m) rounds=1 tokens=4 dtypes=(float32)
    writers=(--contestant=fidgpt --batch_size=1)
    step=(--contestant="PyTorch, float32" --contestant="fidgpt, as it comes")
    configs=(debug) size=(set:batch_size=2)
    profile=(config:debug fiddler:smoke_test set:num_steps=20)
fi

printf '# On %s, %s\n' "$device" "$(date -u +%F)" > "$page"
part Correctness "$python" benchmarks/gpu.py correctness --device="$device"
for shape in "${shapes[@]}"; do
    part "Training steps: $shape" "$python" benchmarks/training/step.py --device="$device" \
        --peers="$peers" --shape="$shape" --rounds="$rounds" "${step[@]}"
done
for dtype in "${dtypes[@]}"; do
    part "Generation in $dtype" "$python" benchmarks/generation/speed.py --device="$device" \
        --peers="$peers" --dtype="$dtype" --num_tokens="$tokens" --rounds="$rounds" "${writers[@]}"
done
for config in "${configs[@]}"; do
    part "Memory: $config" "$python" benchmarks/gpu.py memory --device="$device" \
        --config="$config" "${size[@]}"
done
part "Profile" profiled "${profile[@]}"
echo "$page is written." >&2
exit "$failed"
