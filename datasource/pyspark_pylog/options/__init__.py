"""Options of the data source: their table, their grammar, and the values that tasks carry."""
