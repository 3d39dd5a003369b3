#!/bin/sh
# Makes .venv ready: a virtual environment with fidgpt (editable) and all it needs, as constraints.txt pins it.
# Over in milliseconds when nothing has changed. Needs Python and the package index; neither root nor activation.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")"
state_file=.venv/fidgpt-setup

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# The pins were made for these Pythons; a newer one may find no wheels for them.
supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}

find_python() {
    for python in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.14 python; do
        # A name on the PATH is not enough: version managers keep names that do not run.
        if supported "$python"; then return; fi
        [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON does not run, or is not a Python 3.11, 3.12, 3.13 or 3.14."
    done
    fail "fidgpt needs Python 3.11, 3.12, 3.13 or 3.14, and finds none as python3 or python3.11 to python3.14." \
        "Install one (Debian, Ubuntu: python3 and python3-venv), or say where it is: make PYTHON=/path/to/python3 ..."
}

usable() {
    supported .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1
}

create_by() {
    rm -rf .venv
    said=$("$@" 2>&1) && usable
}

# pip from outside the environment (22.3 and later) puts one inside.
create_by_foreign_pip() {
    rm -rf .venv
    said=$("$python" -m venv --without-pip .venv 2>&1 &&
        "$python" -m pip --python .venv/bin/python install pip 2>&1) && usable
}

# Debian's Python cannot make environments until python3-venv is installed; other tools can.
create_environment() {
    find_python
    echo "setup: making .venv with Python $("$python" -c 'import sys; print(sys.version.split()[0], sys.executable)')"
    create_by "$python" -m venv .venv ||
        create_by "$python" -m virtualenv .venv ||
        create_by virtualenv --python "$python" .venv ||
        create_by uv venv --seed --python "$python" .venv ||
        create_by_foreign_pip ||
        fail "$python can make no virtual environment, by venv, virtualenv, uv or pip. The last said:" \
            "$(printf '%s\n' "$said" | tail -n 3)" \
            "Install venv (Debian, Ubuntu: apt install python3-venv), virtualenv or uv, and run make again."
}

# What an environment must have been made from to be ready. A clone that was moved is not: its path is in it.
wanted=$(cat pyproject.toml constraints.txt setup.sh | cksum) wanted="$wanted $PWD"
state=$(cat "$state_file" 2>/dev/null || true)
if [ "$state" = "$wanted" ] && [ -x .venv/bin/python ]; then exit 0; fi

# A second make waits here for the first; the lock goes with the process that holds it.
if command -v flock >/dev/null; then
    exec 9<setup.sh
    flock 9
    state=$(cat "$state_file" 2>/dev/null || true)
    if [ "$state" = "$wanted" ] && [ -x .venv/bin/python ]; then exit 0; fi
fi

# What an interrupted installation left cannot be trusted: begin anew.
if [ "$state" = installing ] || ! usable; then create_environment; fi
echo installing >"$state_file"
echo "setup: installing fidgpt and what it needs into .venv (some minutes, once)"
# The user's own pip settings for other places (PIP_USER and so on) must not lead out of .venv.
env -u PIP_TARGET -u PIP_PREFIX -u PYTHONPATH -u PYTHONHOME PIP_USER=0 \
    .venv/bin/python -m pip install -c constraints.txt -e '.[dev]' ||
    fail "The installation did not finish; pip says why above. Run make again when that is mended."
printf '%s\n' "$wanted" >"$state_file"
