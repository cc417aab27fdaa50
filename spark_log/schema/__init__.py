"""Schemas of typed topics: Arrow types, DDL, the JSON of a `StructType`, and evolution.  Pure, and without pyspark."""
