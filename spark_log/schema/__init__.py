"""Schemas of typed topics: Arrow types, DDL, the JSON of a `StructType`, and evolution.  Pure, and without pyspark.

`topic_schema.py` is one version of a topic's schema, in the forms in which users give it.  `ddl.py` and
`struct_json.py` are two of the forms, and `arrow_types.py` has the types.  `evolution.py` decides which schema may
follow another one: each value of the old one must be a value of the new one.  `names.py` maps the names of columns to
those in objects.

Values are converted in `segment`, which knows batches.  The versions of a topic's schema are in the state, in
`metadata/topics`.
"""
