"""The report: one HTML page about a model, for the person who decides what to do with it.

`tested_model` splits the ratings, fits the copy that is tested and looks for trouble in the data;
`measures` measures the copy, `advice` draws the verdict and what to do next, `write` fills in the
templates.
"""
