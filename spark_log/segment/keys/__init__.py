"""Record keys over whole Arrow arrays: Kafka's hash, hashes as good as the keys, sets of keys, and newest offsets by
key.
"""
