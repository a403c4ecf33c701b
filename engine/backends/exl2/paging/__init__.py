"""Pages of the cache, which jobs take one by one, and give up when none is left."""
