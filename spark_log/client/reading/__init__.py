"""Reading: from positions to ranges of objects to Arrow batches."""
