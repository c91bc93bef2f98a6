"""SQL views over chunk inventories, and the same as a script."""
