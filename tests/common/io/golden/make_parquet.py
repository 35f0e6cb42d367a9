"""Makes the Parquet files of parquet_test.cc, and JSON Lines of the rows that Python reads from them.

Needs pyarrow 26.0.1: python3 make_parquet.py (writes into its own folder)
"""

import datetime
import json
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent


def write(name, table, **options):
    pq.write_table(table, HERE / f"{name}.parquet", **options)
    rows = pq.read_table(HERE / f"{name}.parquet").to_pylist()
    for row in rows:
        if row.get("f32"):
            row["f32"] = float(str(np.float32(row["f32"])))  # as it is written, not with the digits of a double
    if rows:
        lines = "".join(json.dumps(row, default=str) + "\n" for row in rows)
        (HERE / f"{name}.parquet.jsonl").write_text(lines, encoding="utf-8")


def verl_row(i):
    return {
        "data_source": "math" if i % 2 else "aime",
        "prompt": [{"content": f"System {i}.", "role": "system"}, {"content": f"What is {i} + {i}? \u00e9\U0001f600", "role": "user"}][i % 2:],
        "ability": "math",
        "reward_model": {"ground_truth": str(2 * i), "style": "rule"},
        "extra_info": {"index": i, "split": "test"},
    }


def main():
    write("verl", pa.Table.from_pylist([verl_row(i) for i in range(7)]), row_group_size=3, compression="snappy")

    types = pa.table({
        "flag": pa.array([True, None, False]),
        "i8": pa.array([-128, None, 127], pa.int8()),
        "u64": pa.array([0, 2**64 - 1, None], pa.uint64()),
        "i64": pa.array([-2**63, 2**63 - 1, 0], pa.int64()),
        "f32": pa.array([0.5, None, 0.1], pa.float32()),
        "f64": pa.array([0.1, 1e300, None], pa.float64()),
        "text": pa.array(["", None, "a\nb\u2028"], pa.large_string()),
        "category": pa.array(["x", "y", "x"]).dictionary_encode(),
        "nothing": pa.nulls(3),
        "list": pa.array([[1, 2], [], None], pa.list_(pa.int32())),
        "lists": pa.array([[["a"], []], None, [None, ["b", None]]], pa.large_list(pa.list_(pa.string()))),
        "pair": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int16(), 2)),
        "struct": pa.array([{"a": 1, "b": {"c": [{"d": "e"}]}}, None, {"a": None, "b": {"c": []}}]),
        "when": pa.array([datetime.datetime(2026, 1, 1)] * 3),  # a type that is not supported
    })
    write("types", types, compression="zstd", data_page_version="2.0", write_page_checksum=True)
    write("empty", types.slice(0, 0))


if __name__ == "__main__":
    main()
