"""Configs of topics and of the log, as data: names, types, ranges, defaults and meanings.  Pure.

`settings.py` has the two tables, for topics and for the log.  The commands, the clients and the pages of the
documentation are made from them, so a default stands in one place.  `config_types.py` has the types, with a parser and
a message for each.  `topic_names.py` has Kafka's rules for names.

The settings of clients are beside the clients (`client/client_settings.py`), and the options of the data source beside
that.  To add a config, add a row to a table in `settings.py`, and run `make docs`.
"""
