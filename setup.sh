#!/bin/sh
# Sets up .venv: a virtual environment with fidgpt (editable) and its dependencies, pinned by constraints.txt.
# Takes milliseconds if nothing has changed. Needs Python and access to the package index, but not root.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")"
state_file=.venv/fidgpt-setup

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# The pins were tested with these versions of Python; a newer one may lack wheels for them.
supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}

find_python() {
    for python in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.14 python; do
        # Being on the PATH is not enough: version managers install shims that may not run.
        if supported "$python"; then return; fi
        [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON does not run, or is not a Python 3.11, 3.12, 3.13 or 3.14."
    done
    fail "fidgpt needs Python 3.11, 3.12, 3.13 or 3.14, but found none as python3 or python3.11 to python3.14." \
        "Install one (Debian, Ubuntu: python3 and python3-venv), or pass its path: make PYTHON=/path/to/python3 ..."
}

usable() {
    supported .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1
}

create_by() {
    rm -rf .venv
    output=$("$@" 2>&1) && usable
}

# pip 22.3 and later can install into another environment.
create_by_foreign_pip() {
    rm -rf .venv
    output=$("$python" -m venv --without-pip .venv 2>&1 &&
        "$python" -m pip --python .venv/bin/python install pip 2>&1) && usable
}

# Debian's Python cannot create environments until python3-venv is installed; other tools can.
create_environment() {
    find_python
    echo "setup: creating .venv with Python $("$python" -c 'import sys; print(sys.version.split()[0], sys.executable)')"
    create_by "$python" -m venv .venv ||
        create_by "$python" -m virtualenv .venv ||
        create_by virtualenv --python "$python" .venv ||
        create_by uv venv --seed --python "$python" .venv ||
        create_by_foreign_pip ||
        fail "$python cannot create a virtual environment with venv, virtualenv, uv or pip. The last error:" \
            "$(printf '%s\n' "$output" | tail -n 3)" \
            "Install venv (Debian, Ubuntu: apt install python3-venv), virtualenv or uv, and run make again."
}

# The state of an up-to-date environment. It includes the path: environments cannot be moved.
wanted=$(cat pyproject.toml constraints.txt setup.sh | cksum) wanted="$wanted $PWD"
state=$(cat "$state_file" 2>/dev/null || true)
if [ "$state" = "$wanted" ] && [ -x .venv/bin/python ]; then exit 0; fi

# Concurrent runs wait here; the lock is released when the process that holds it exits.
if command -v flock >/dev/null; then
    exec 9<setup.sh
    flock 9
    state=$(cat "$state_file" 2>/dev/null || true)
    if [ "$state" = "$wanted" ] && [ -x .venv/bin/python ]; then exit 0; fi
fi

# Start over after an interrupted installation.
if [ "$state" = installing ] || ! usable; then create_environment; fi
echo installing >"$state_file"
echo "setup: installing fidgpt and its dependencies into .venv (takes minutes, once)"
# The user's pip settings for other locations, such as PIP_USER, must not apply.
env -u PIP_TARGET -u PIP_PREFIX -u PYTHONPATH -u PYTHONHOME PIP_USER=0 \
    .venv/bin/python -m pip install -c constraints.txt -e '.[dev]' ||
    fail "The installation failed; see the output of pip above. Fix the cause and run make again."
printf '%s\n' "$wanted" >"$state_file"
