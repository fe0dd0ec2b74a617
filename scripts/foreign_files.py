"""Writes small files as other programs write them, for the tests of crates/ebb-train/src/read.

    python scripts/foreign_files.py crates/ebb-train/tests/foreign

Needs PyArrow and NumPy; written with 26.0.1 and 2.4.6.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

N_ROWS = 300


def table():
    """Row i: every kind of column that is read, one that has gaps, one that no row has, and a list."""
    rows = range(N_ROWS)
    return pa.table({
        "id": pa.array([[i] for i in rows], pa.list_(pa.int64())),
        "size": pa.array([i * 0.5 for i in rows], pa.float64()),
        "weight": pa.array([i * 0.25 for i in rows], pa.float32()),
        "count": pa.array([i - 100 for i in rows], pa.int64()),
        "level": pa.array([2**32 - 1 - i for i in rows], pa.uint32()),
        "far": pa.array([2**63 + i for i in rows], pa.uint64()),
        "small": pa.array([i % 7 - 3 for i in rows], pa.int8()),
        "open": pa.array([i % 3 == 0 for i in rows], pa.bool_()),
        "colour": pa.array([None if i % 5 == 4 else ["red", "dark blue"][i % 2] for i in rows], pa.string()),
        "empty": pa.array([None for _ in rows], pa.string()),
    })


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(), folder / "default.parquet", row_group_size=200)
    pq.write_table(table(), folder / "version-2.parquet", data_page_version="2.0", use_dictionary=False)
    pq.write_table(table(), folder / "plain.parquet", compression="none", store_schema=False)
    pq.write_table(table().select(["size"]), folder / "zstd.parquet", compression="zstd")
    x = (np.arange(2 * 3 * 4) * 10).astype(np.uint8).reshape(2, 3, 4)
    np.savez(folder / "stored.npz", x=x, y=np.array([3, -1]))
    images = np.arange(40 * 4 * 4).astype(np.uint8).reshape(40, 4, 4)
    np.savez_compressed(folder / "images.npz", x=images, y=np.arange(40) % 3)
    np.savez_compressed(folder / "deflated.npz", y=np.array([3, -1], np.int32), x=x.astype(np.float32))


main(Path(sys.argv[1]))
