"""The product against files of test vectors: `python -m simulation.vectors KIND FILE`."""
