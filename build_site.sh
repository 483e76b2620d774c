#!/usr/bin/env bash
# Runs every notebook and publishes the course as static pages: ./build_site.sh [DIR] [--jobs N]. DIR is "site" unless given.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"

ready() { command -v "$1" >/dev/null && "$1" -c 'import anywidget, marimo, matplotlib, monarch, scipy, torch, transformers' 2>/dev/null; }

python="$here/.venv/bin/python"
if ! ready "$python"; then
    if ready python3; then
        python=python3
    else
        echo "Preparing $here/.venv, once (about five minutes)"
        python3 -m venv "$here/.venv"
        "$python" -m pip install --quiet --editable "$here[site]"
    fi
fi
# What makes the pages searchable. Without a network there is none, and the site has no search.
if [ "$python" != python3 ] && ! "$python" -c 'import pagefind' 2>/dev/null; then
    echo "Installing what makes the pages searchable, once"
    "$python" -m pip install --quiet --retries 1 --timeout 10 --editable "$here[site]" 2>/dev/null || true
fi
exec "$python" -m zorplex_rl.course.site --notebooks "$here/notebooks" "$@"
