#!/usr/bin/env bash
# Pack the course for a classroom without a network: workshop/bundle.sh [FILE]. FILE is dist/zorplex-course.tar unless given.
#
#   zorplex-course/install.sh     needs nothing but Python: makes an environment from wheels/, and asks no network
#   zorplex-course/course/        the repository as it was last committed
#   zorplex-course/wheels/        the course and all it needs, for this machine's Python and platform, in the versions that are installed here
#   zorplex-course/site/          the pages, if ./build_site.sh was run before
#
# Give it to machines of the same platform and Python version: wheels of another do not fit, and pip says so.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
target=$(realpath -m "${1:-$here/dist/zorplex-course.tar}")
python=${PYTHON:-$here/.venv/bin/python}

fail() { echo "workshop/bundle.sh: $1" >&2; exit 1; }
"$python" -c 'import monarch, torch' 2>/dev/null || fail "$python does not have the course installed; run the install command of README.md first, or name another with PYTHON=…"
git -C "$here" diff --quiet HEAD || echo "note: what is not committed is not in the bundle"

draft=$(mktemp -d "${TMPDIR:-/tmp}/zorplex-bundle.XXXXXX")
trap 'rm -rf "$draft"' EXIT
course=$draft/zorplex-course
mkdir -p "$course/course" "$course/wheels" "$(dirname "$target")"

git -C "$here" archive HEAD | tar -x -C "$course/course"
cp "$here/workshop/install.sh" "$course/install.sh"
if [ -f "$here/site/index.html" ]; then
    cp -r "$here/site" "$course/site"
else
    echo "note: there is no site/; run ./build_site.sh first to have the pages in the bundle"
fi

# The versions that work here, so that a newer release of anything cannot break a class. Hatchling installs the course itself.
"$python" -m pip freeze --exclude-editable >"$draft/versions.txt"
"$python" -m pip wheel --quiet --wheel-dir "$course/wheels" --constraint "$draft/versions.txt" "$course/course"
"$python" -m pip download --quiet --only-binary :all: --dest "$course/wheels" 'hatchling>=1.27' 'editables>=0.3'
rm -f "$course/wheels/"zorplex_rl-*.whl

tar -c -C "$draft" --owner=0 --group=0 -f "$target" zorplex-course
echo "$target: $(du -m "$target" | cut -f1) MB, $(ls "$course/wheels" | wc -l) wheels for $("$python" -VV | cut -d" " -f1,2) on $(uname -sm)"
