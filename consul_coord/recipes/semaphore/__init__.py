"""The semaphore: its record and contenders, the judgement of a listing, its transactions."""
