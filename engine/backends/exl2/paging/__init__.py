"""The pages of the cache. Jobs take pages one by one; when no page is left, one of the jobs
releases its pages.
"""
