"""Turns the events of a request into bytes on its socket. Runs on request threads and the sender's
thread.
"""
