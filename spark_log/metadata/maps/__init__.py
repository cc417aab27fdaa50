"""Persistent maps for a state with millions of rows: rows that never change in Arrow columns, and the changes since
then.

`layered_map.py` is the map that the state has, `column_map.py` its base, and `column_blocks.py` the blocks as a
checkpoint stores them, in the frames of `frames.py`.
"""
