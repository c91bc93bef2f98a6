"""Random histories by many writers, replayed on a model that knows nothing of the package."""
