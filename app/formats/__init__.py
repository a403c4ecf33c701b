"""The wire formats. Each has a folder with the request bodies, answer bodies and routes of one
API.
"""
