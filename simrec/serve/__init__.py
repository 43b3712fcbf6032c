"""The HTTP service and the studio, a page on top of it; the extra ``simrec[serve]``."""
