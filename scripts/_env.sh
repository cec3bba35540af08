# Sourced by the other scripts: leaves the shell in the root of the project, with .venv made, whole and first on PATH.
#
# Python 3.11 or later is all that it needs; the environment variable PYTHON chooses one. The environment is held by a
# lock for as long as the script lives, so that another run cannot rebuild it underneath.
set -euo pipefail
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV CDPATH
exec </dev/null

usable() { # python: whether it can make an environment
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate candidates=(python3 python3.14 python3.13 python3.12 python3.11 python)
    if [[ -n "${PYTHON:-}" ]]; then
        candidates=("$PYTHON")
    fi
    for candidate in "${candidates[@]}"; do
        if usable "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    echo "${PYTHON:+PYTHON=$PYTHON: }no Python 3.11 or later with the modules venv and ensurepip was found." >&2
    echo "To mend it: install one (on Debian and Ubuntu also the package python3-venv)," \
        "or name one, as in: PYTHON=/path/to/python3.11 bash $0" >&2
    return 1
}

python="$(find_python)"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p .cache
exec 9>>.cache/environment.lock
"$python" scripts/_env.py 9
export PATH="$PWD/.venv/bin:$PATH"
