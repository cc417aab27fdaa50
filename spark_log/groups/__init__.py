"""Consumer groups: the classic group protocol, the assignors, and the rules of committed offsets.  Pure."""
