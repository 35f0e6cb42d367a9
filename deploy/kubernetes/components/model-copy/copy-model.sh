#!/bin/sh
# Copies the model directory $MODEL below /source to the same path below /models, checks it against
# SHA256SUMS if the model has one, and skips work that an earlier start of the pod has completed.
set -eu
name=${MODEL#/models/}
source=${SOURCE_DIR:-/source}/$name
target=${MODELS_DIR:-/models}/$name
if [ -e "$target/.complete" ]; then
  echo "$target is complete"
  exit 0
fi
rm -rf "$target"
mkdir -p "$target"
cp -R "$source/." "$target"
if [ -e "$target/SHA256SUMS" ]; then
  (cd "$target" && sha256sum -c SHA256SUMS)
fi
touch "$target/.complete"
