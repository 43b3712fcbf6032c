"""The report: one HTML page about a model, for the person who decides what to do with it.

`tested_model` splits the ratings and fits the copy that is tested; `measures` measures it, `alerts`
looks for trouble in the data, `examples` makes lists with reasons; `advice` draws the verdict and
what to do next; `page` puts that first, and the evidence (`comparisons`, `sections`) after it, by
the means of `html`, `charts` and `style`; `write` does all of it. `replay_page` is the page of a
replay.
"""
