"""The wire formats, a folder each: request bodies, answer bodies and routes of one API."""
