"""Parquet in, Parquet out: the jobs behind the command line, as Python functions.

>>> from simrec.jobs.score import score  # doctest: +SKIP
>>> score(model="model", pairs="pairs.parquet", out="scores")  # doctest: +SKIP
"""
