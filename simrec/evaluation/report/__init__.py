"""The report: one HTML page about a model, for people who decide what to do with it.

`subject` splits the ratings and fits the copy that is tested; `errors`, `cold`, `checks`,
`summary`, `atlas` and `examples` measure; `findings` gathers what they measured; `results`,
`breakdown`, `portrait` and `material` put it into sections; `page` makes one file of them. `html`
and `svg` are how it is written and drawn.
"""
