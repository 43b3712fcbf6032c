"""Tables in: ratings, ids, features, splits and synthetic data.

The names live in their modules (`simrec.data.ratings.Ratings` and so on) and the everyday ones
are offered by `simrec` itself; nothing is imported here, so that `import simrec` stays light.
"""
