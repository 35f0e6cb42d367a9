#!/bin/sh
# Downloads the model $SOURCE to $TARGET below /models, checks it against SHA256SUMS where it has one, and skips what is
# there. An interrupted download continues; a half model never has the model's name.
set -eu
target=${MODELS_DIR:-/models}/$TARGET
part=$target.part
if [ -e "$target" ]; then
  echo "$target exists"
  exit 0
fi
case $SOURCE in
  hf://*)
    name=${SOURCE#hf://}
    revision=main
    case $name in *@*) revision=${name#*@} name=${name%@*} ;; esac
    # The pattern leaves out PyTorch's weights, *.bin and *.pth. It is a single one, because versions
    # of hf differ in how they take several.
    hf download "$name" --revision "$revision" --local-dir "$part" --exclude '*.[bp][it][nh]'
    ;;
  # --delete removes what an interrupted download has left under other names.
  s3://*) aws s3 sync --delete --no-progress "$SOURCE" "$part" ;;
  *)
    echo "SOURCE is $SOURCE: expected hf://OWNER/NAME or s3://BUCKET/PATH" >&2
    exit 64
    ;;
esac
rm -rf "$part/.cache"
if [ ! -e "$part/config.json" ]; then
  echo "$SOURCE has no config.json: it is not a model" >&2
  exit 65
fi
if [ -e "$part/SHA256SUMS" ]; then
  (cd "$part" && sha256sum -c SHA256SUMS) || {
    rm -rf "$part"
    exit 1
  }
fi
mv "$part" "$target"
