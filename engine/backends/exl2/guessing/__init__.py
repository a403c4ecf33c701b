"""Speculative decoding: a step checks the tokens that were guessed for each job, and keeps those
that the job would have drawn anyway.
"""
