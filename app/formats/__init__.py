"""The wire formats. Each has a folder with the request bodies, response bodies and routes of one
API.
"""
