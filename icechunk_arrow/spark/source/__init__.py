"""``format("icechunk")``: what Spark asks of a Python data source, answered with reading and writing."""
