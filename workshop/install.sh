#!/usr/bin/env bash
# Install the course: ./install.sh [PYTHON]. It needs Python 3.11 to 3.13 and nothing else.
#
#   zorplex-course/install.sh      in the archive of bundle.sh: from the wheels beside it, without a network
#   workshop/install.sh            in a clone: from where pip is configured to look
#
# Which wheel fits this machine, pip decides. With TORCH_INDEX=ADDRESS torch alone comes from that index: on Linux, give the address that
# PyTorch's install page names for pip and CPU, or pip takes the build with CUDA, which is several times as large.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "install.sh: $1" >&2; exit 1; }

if [ -d "$here/wheels" ]; then
    course=$here/course
    # Whatever pip is configured to do on this machine, everything it needs is here.
    export PIP_CONFIG_FILE=/dev/null
    source=(--no-index --find-links "$here/wheels")
elif [ -f "$here/../pyproject.toml" ]; then
    course=$(cd "$here/.." && pwd)
    source=()
else
    fail "there are no wheels beside this file, and it is in no clone of the course; workshop/bundle.sh makes the archive that has them"
fi
environment=$course/.venv

install() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "it is not Python 3.11 to 3.13"; return 1; }
    "$1" -m venv --clear "$environment" || { echo "it could make no environment; on Debian, install python3-venv"; return 1; }
    pip=("$environment/bin/python" -m pip install --quiet --disable-pip-version-check)
    [ -z "${TORCH_INDEX:-}" ] || "${pip[@]}" --index-url "$TORCH_INDEX" 'torch>=2.13,<2.14' || return 1
    "${pip[@]}" "${source[@]}" --editable "$course"
}

tried=
for candidate in ${1:+"$1"} ${1:-python3 python3.13 python3.12 python3.11 python}; do
    command -v "$candidate" >/dev/null || continue
    if said=$(install "$candidate" 2>&1); then
        echo "Installed. Open the course:"
        echo "    cd '$course' && .venv/bin/marimo edit notebooks/"
        [ ! -f "$here/site/index.html" ] || echo "Or read its pages: open $here/site/index.html in a browser."
        exit 0
    fi
    tried+=$'\n'"$candidate: $said"
done
fail "no Python here can install the course; name one: ./install.sh /path/to/python3.13. Tried:${tried:- none was found}"
