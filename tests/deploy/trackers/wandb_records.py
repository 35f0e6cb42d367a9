"""Prints what a run of W&B's offline mode has recorded, as one JSON object. Runs in the environment with the package.

    wandb_records.py FILE.wandb

The file has LevelDB's log format behind a header of seven bytes: blocks of 32 KiB, of records in up to as many pieces,
each with a checksum (4 bytes), a length (2), and a type: whole, first, middle or last.
"""

import json
import struct
import sys

from wandb.proto import wandb_internal_pb2

BLOCK, FILE_HEADER, HEADER = 32 * 1024, 7, struct.Struct("<IHB")
WHOLE, FIRST, LAST = 1, 2, 4


def records(data):
    at, record = FILE_HEADER, b""
    while at + HEADER.size <= len(data):
        if BLOCK - at % BLOCK < HEADER.size:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        piece = data[at + HEADER.size:at + HEADER.size + length]
        at += HEADER.size + length
        record = piece if kind in (WHOLE, FIRST) else record + piece
        if kind in (WHOLE, LAST):
            yield wandb_internal_pb2.Record.FromString(record)


def key(item):
    return item.key or ".".join(item.nested_key)


def main():
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    seen = {"config": {}, "history": {}, "summary": {}, "artifacts": []}
    for record in records(data):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            seen["name"] = record.run.display_name
            seen["config"] |= {key(item): json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            values = {key(item): json.loads(item.value_json) for item in record.history.item}
            seen["history"].setdefault(record.history.step.num, {}).update(values)
        elif kind == "summary":
            seen["summary"] |= {key(item): json.loads(item.value_json) for item in record.summary.update}
        elif kind == "artifact":
            seen["artifacts"].append([record.artifact.type, record.artifact.name])
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
