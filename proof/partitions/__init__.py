"""Partitions shared by members that are being hurt, on a real cluster, and a verdict on their owners.

``python -m proof.partitions --seconds 60 --seed 1`` runs it; docs/proof.md says what it does.
"""
