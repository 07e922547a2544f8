"""The world of blocking code.

The driver that runs programs on the caller's thread, and the facades over them.
"""
