"""Pages of the cache: jobs take them one by one, and give them up when none is left."""
