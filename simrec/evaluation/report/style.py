"""The page's style: one column on a phone, two where there is room, light and dark, print."""

STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --paper: #ffffff; --panel: #f4f6f9; --rule: #d9dee6;
  --good: #0a7a4b; --bad: #b3261e; --c0: #0b6fb8; --c1: #c05a00; --c2: #0a8a68; --c3: #a8488a;
  --c4: #8a7400; --c5: #2f3b4a; --c6: #9aa3af; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebf0; --soft: #a3adbb; --paper: #14181f;
  --panel: #1e242d; --rule: #38414e; --good: #52c793; --bad: #ff8a80; --c0: #5cb3f0;
  --c1: #f0995a; --c2: #45c9a3; --c3: #e08cc6; --c4: #d9c04a; --c5: #d5dbe5; --c6: #6f7a89; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; margin: 0 0 0.5rem; }
h3 { font-size: 1.02rem; margin: 1.2rem 0 0.4rem; }
p { margin: 0.5rem 0; max-width: 46rem; }
header > p, .small, figcaption, footer { color: var(--soft); }
header > .lead { color: var(--ink); font-size: 1.15rem; font-weight: 600; }
.small, figcaption { font-size: 0.92rem; }
figcaption { margin-top: 0.5rem; max-width: 42rem; }
section { border-top: 1px solid var(--rule); padding: 1.5rem 0 1rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.4rem; margin: 1.2rem 0; }
nav a { border: 1px solid var(--rule); border-radius: 1rem; color: var(--ink);
  font-size: 0.9rem; padding: 0.35rem 0.8rem; text-decoration: none; }
nav a:hover, nav a:focus { border-color: var(--c0); }
.tiles, .cards { display: grid; gap: 0.8rem; grid-template-columns: 1fr 1fr; }
.tile, article { background: var(--panel); border-radius: 0.6rem; padding: 0.8rem; }
.tile { border-left: 4px solid var(--rule); }
.tile.good { border-color: var(--good); } .tile.bad { border-color: var(--bad); }
.tile h3 { margin: 0; font-size: 0.95rem; }
.tile p { margin: 0.15rem 0; font-size: 0.9rem; }
.tile .big { font-size: 1.7rem; font-weight: 700; line-height: 1.2; }
.good .big, .up { color: var(--good); } .bad .big, .down { color: var(--bad); }
.cards { grid-template-columns: 1fr; }
.pair { display: grid; gap: 1rem 2rem; grid-template-columns: minmax(0, 1fr); }
.pair > *, .stack > * { min-width: 0; }
article h3 { margin-top: 0; }
article ol { padding-left: 1.3rem; margin: 0.5rem 0 0; }
article ol > li { margin-bottom: 0.8rem; }
article li p { margin: 0.1rem 0; }
.score { background: var(--c0); border-radius: 0.8rem; color: var(--paper); font-weight: 600;
  margin-left: 0.5rem; padding: 0.05rem 0.5rem; white-space: nowrap; }
.why { font-size: 0.92rem; list-style: none; padding: 0; margin: 0.2rem 0; }
.why b { display: inline-block; min-width: 3.2rem; font-variant-numeric: tabular-nums; }
figure { margin: 0.8rem 0; }
.chart { display: block; width: 100%; max-width: 30rem; height: auto; }
.large .chart { max-width: none; background: var(--panel); border-radius: 0.6rem; }
svg text { fill: var(--ink); font-size: 12px; }
svg .axis { fill: var(--soft); }
svg .name { font-size: 10.5px; paint-order: stroke; stroke: var(--panel); stroke-width: 3px; }
svg .many { display: none; } svg .many .name { font-size: 6.5px; stroke-width: 1.5px; }
.grid { stroke: var(--rule); }
.line { fill: none; stroke-width: 2; }
.ideal { stroke: var(--ink); stroke-dasharray: 5 4; stroke-width: 1.2; }
.dot { fill-opacity: 0.7; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; font-size: 0.92rem;
  margin-bottom: 0.3rem; }
.legend svg { margin-right: 0.3rem; vertical-align: -2px; }
.wide { overflow-x: auto; margin: 0.8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
caption { color: var(--soft); font-size: 0.92rem; padding: 0.3rem 0; text-align: left; }
th, td { border-bottom: 1px solid var(--rule); padding: 0.35rem 0.5rem; text-align: right;
  vertical-align: top; overflow-wrap: normal; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-size: 0.9rem; font-weight: 600; }
tbody th { font-weight: 500; min-width: 6.5rem; }
.bars th { overflow-wrap: anywhere; width: 30%; } .bars td { text-align: left; }
.bars td:last-child { font-size: 0.9rem; width: 38%; }
.bars td:nth-child(2) { width: 32%; vertical-align: middle; }
.track { position: relative; }
.tick { background: var(--ink); height: 1.3rem; margin-left: -1px; position: absolute;
  top: -0.2rem; width: 2px; }
.bar { border-radius: 0 3px 3px 0; display: block; height: 0.9rem; min-width: 1px; }
.warnings { list-style: none; padding: 0; }
.warnings li { border-left: 3px solid var(--rule); margin: 0.7rem 0; padding-left: 0.8rem; }
.badge { border: 1px solid currentColor; border-radius: 0.3rem; font-size: 0.8rem;
  font-weight: 600; padding: 0.05rem 0.4rem; white-space: nowrap; }
.badge.error, .badge.leak { color: var(--bad); } .badge.drift { color: var(--c1); }
.badge.nothing, .badge.data { color: var(--soft); }
.absent { color: var(--soft); font-style: italic; }
dl { display: grid; gap: 0.2rem 1.2rem; grid-template-columns: 1fr; margin: 0.5rem 0; }
dt { color: var(--soft); font-size: 0.92rem; } dd { margin: 0 0 0.4rem; }
summary { color: var(--c0); cursor: pointer; font-size: 0.92rem; padding: 0.4rem 0; }
@media (max-width: 30rem) { th, td { font-size: 0.9rem; padding: 0.35rem 0.3rem; } }
@media (min-width: 48rem) {
  .tiles { grid-template-columns: repeat(4, 1fr); }
  .cards { grid-template-columns: repeat(3, 1fr); }
  .pair { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  dl { grid-template-columns: 20rem 1fr; } dd { margin: 0; }
  .beside { display: grid; gap: 2rem; grid-template-columns: 30rem 1fr; align-items: center; }
  svg .many { display: inline; } svg .few { display: none; }
}
@media print {
  nav { display: none; } body { max-width: none; font-size: 10pt; }
  figure, article, .tile, tr { break-inside: avoid; } section { break-before: auto; }
}
""" + "".join(
    f".f{i} {{ fill: var(--c{i}); }} .s{i} {{ stroke: var(--c{i}); }} "
    f".c{i} {{ background: var(--c{i}); }}\n"
    for i in range(7)
)
