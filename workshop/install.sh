#!/usr/bin/env bash
# Install the course from this folder, without a network: ./install.sh [PYTHON]. It needs Python and nothing else.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "install.sh: $1" >&2; exit 1; }

[ -f "$here/platform.txt" ] || fail "there are no wheels beside this file; workshop/bundle.sh makes the archive that has them"
read -r version platform <"$here/platform.txt"

fits() {
    "$1" - "$version" "$platform" 2>/dev/null <<'PY'
import sys, sysconfig

sys.exit([f"{sys.version_info.major}.{sys.version_info.minor}", sysconfig.get_platform()] != sys.argv[1:])
PY
}

python=
for candidate in ${1:+"$1"} ${1:-"python$version" python3 python}; do
    if command -v "$candidate" >/dev/null && fits "$candidate"; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "the wheels are for Python $version on $platform, and ${1:-no python3 here} is not that; name one: ./install.sh /path/to/python$version"

# Whatever pip is configured to do on this machine, everything it needs is here.
export PIP_CONFIG_FILE=/dev/null
environment=$here/course/.venv
"$python" -m venv "$environment" || fail "Python could not make an environment in $environment; on Debian, install the package python$version-venv"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$here/wheels" --editable "$here/course"

echo "Installed. Open the course:"
echo "    cd '$here/course' && .venv/bin/marimo edit notebooks/"
[ ! -f "$here/site/index.html" ] || echo "Or read its pages: open $here/site/index.html in a browser."
