"""The logic of locks, elections and semaphores, written once, as programs over ``consul_coord.io.IO``.

Nothing in here may import time, random, uuid, threading, asyncio or httpx, or do any I/O but through its
``IO``.
"""
