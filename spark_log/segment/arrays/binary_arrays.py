"""Binary Arrow arrays as numpy arrays, for work on the bytes of all elements in parallel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]


def buffers_of(array: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """The elements' bytes followed by four zeros, and the start and length of each element in them.

    array: binary, not empty.  A null has the length 0.
    """
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    offsets = offsets.astype(np.int64)
    data = np.zeros(int(offsets[-1] - offsets[0]) + 4, dtype=np.uint8)
    if len(data) > 4:
        data[:-4] = np.frombuffer(data_buffer, dtype=np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets[:-1] - offsets[0], np.diff(offsets)


def words_of(data: Bytes) -> Words:
    """The word that starts at each byte, little endian; data: of `buffers_of`."""
    return np.ndarray(shape=(len(data) - 3,), dtype="<u4", buffer=data.data, strides=(1,))
