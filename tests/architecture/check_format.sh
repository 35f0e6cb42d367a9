#!/bin/sh
# check_format.sh DEFAULT_DEPS SOURCE_DIR
# Every C++ file is as .clang-format says. Names the files that are not, and how to mend them.
# 77: skipped.
set -eu
format=${TAOPD_DEPS:-$1}/test-venv/bin/clang-format
if [ ! -x "$format" ]; then
  echo "skipped: $format does not exist; tests/run installs it from tests/requirements.txt"
  exit 77
fi
cd "$2"
files=$(find common deploy kernels server trainer tests -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc')
if ! said=$(printf '%s\n' $files | xargs "$format" --dry-run --Werror 2>&1); then
  printf '%s\n' "$said" | grep -E 'error:|warning:' | sed 's/:[0-9]*:[0-9]*: error: code should be clang-formatted.*//' | sort -u
  echo "These files are not as .clang-format says, or clang-format failed. Format them: $format -i FILE"
  exit 1
fi
printf '%s files are formatted\n' "$(printf '%s\n' $files | wc -l)"
