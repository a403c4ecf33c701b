"""Speculative decoding: a step checks tokens that were guessed for each job, and keeps those that
the job would have drawn anyway.
"""
