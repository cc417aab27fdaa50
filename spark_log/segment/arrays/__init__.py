"""Arrow arrays as numpy arrays and back without a copy, Python's values as arrays, and single Arrow messages as bytes.

PyArrow converts through pandas, or changes values without notice; these modules do neither.
"""
