"""Options of the data source: their table, their grammar, and the values that tasks carry.

`option_table.py` has every option as data, from which docs/options.md is made, and `parse.py` reads them in the driver,
where Spark shows errors best.  To add an option, add a row to the table and a field to the values of `parse.py`.
"""
