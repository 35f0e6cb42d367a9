#!/bin/bash
# check_scripts.sh DEFAULT_DEPS SOURCE_DIR
# ruff finds nothing in the tree's Python, mypy nothing in the types of the Python client, and shellcheck no warning in
# the shell scripts.
# 77: skipped.
set -euo pipefail
tools=${TAOPD_DEPS:-$1}/test-venv/bin
if [[ ! -x $tools/ruff || ! -x $tools/mypy ]] || ! command -v shellcheck >/dev/null; then
  echo "skipped: ruff or mypy in $tools, or shellcheck, does not exist; tests/run installs them (deploy/setup --tests)"
  exit 77
fi
cd "$2"
folders=(.ci common deploy kernels proto server trainer tests)
# scripts PATTERN: the files whose first line matches.
scripts() {
  grep -rIlm 1 '^#!' "${folders[@]}" | xargs awk -v pattern="$1" 'FNR == 1 && $0 ~ pattern { print FILENAME } { nextfile }'
}
mapfile -t python < <({ scripts python && find "${folders[@]}" -name '*.py'; } | sort -u)
mapfile -t shell < <(scripts '/(env )?(ba)?sh$')
"$tools/ruff" check --quiet --no-cache --config ruff.toml "${python[@]}"
(cd deploy/python && "$tools/mypy" --strict --ignore-missing-imports --cache-dir /dev/null taopd)
shellcheck --severity warning "${shell[@]}"
printf '%s files of Python and %s shell scripts have no findings\n' ${#python[@]} ${#shell[@]}
