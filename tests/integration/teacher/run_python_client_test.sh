#!/bin/sh
# run_python_client_test.sh DEFAULT_DEPS SCRIPT ARGUMENTS...
# Finds the interpreter when the test runs, so that its environment may be made after configuring.
# 77: skipped.
set -eu
deps=${TAOPD_DEPS:-$1}
shift
python=$deps/test-venv/bin/python
if [ ! -x "$python" ]; then
  echo "skipped: $python does not exist; tests/run makes it from tests/requirements.txt"
  exit 77
fi
exec "$python" "$@"
