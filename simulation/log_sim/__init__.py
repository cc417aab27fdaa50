"""The simulation of the commit protocol: many actors on one log, in an order that a seed decides, checked by an oracle.

`__main__.py` says what each module has.
"""
