"""The wire formats: a folder each, from bodies of requests to bodies of answers."""
