"""Model directories: arrays, manifest, checksums, atomic writes, locks.

Imports nothing of SimRec but its errors and version.
"""
