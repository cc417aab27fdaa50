"""The simulation of coordinators on a quorum: `__main__.py` says what each module has."""
