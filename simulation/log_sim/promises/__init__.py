"""The promises of a log, computed from the records one by one, apart from the product's code."""
