"""The page's style: one column on a phone, two where there is room, light and dark, print."""

STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --paper: #ffffff; --panel: #f4f6f9; --rule: #d9dee6;
  --good: #0a7a4b; --bad: #b3261e; --c0: #0b6fb8; --c1: #c05a00; --c2: #0a8a68; --c3: #a8488a;
  --c4: #8a7400; --c5: #6b7683; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebf0; --soft: #a3adbb; --paper: #14181f;
  --panel: #1e242d; --rule: #38414e; --good: #52c793; --bad: #ff8a80; --c0: #5cb3f0;
  --c1: #f0995a; --c2: #45c9a3; --c3: #e08cc6; --c4: #d9c04a; --c5: #98a3b1; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0 0; }
h2 { font-size: 1.25rem; margin: 0 0 0.5rem; }
h3 { font-size: 1.02rem; margin: 1.2rem 0 0.4rem; }
p { margin: 0.5rem 0; max-width: 46rem; }
.small, figcaption, footer, caption { color: var(--soft); font-size: 0.92rem; }
section { border-top: 1px solid var(--rule); padding: 1.3rem 0 0.8rem; }
.verdict { border-left: 6px solid var(--soft); background: var(--panel); border-radius: 0.4rem;
  font-size: 1.2rem; font-weight: 600; margin: 1rem 0; max-width: none; padding: 0.8rem 1rem; }
.verdict.good { border-color: var(--good); } .verdict.bad { border-color: var(--bad); }
.verdict.part { border-color: var(--c1); } header h2 { margin-top: 1.2rem; }
.better { color: var(--good); font-weight: 700; } .worse { color: var(--bad); }
.same, .spread { color: var(--soft); }
.spread { display: block; font-size: 0.85rem; }
ol.next li, ul.alerts li { margin: 0.6rem 0; }
ul.alerts, ul.why { list-style: none; padding: 0; }
ul.alerts li { border-left: 3px solid var(--rule); padding-left: 0.8rem; }
.badge { border: 1px solid currentColor; border-radius: 0.3rem; font-size: 0.8rem;
  font-weight: 600; padding: 0.05rem 0.4rem; white-space: nowrap; color: var(--soft); }
.badge.leak, .badge.sensitive { color: var(--bad); } .badge.drift { color: var(--c1); }
nav { display: flex; flex-wrap: wrap; gap: 0.4rem; margin: 1rem 0; }
nav a { border: 1px solid var(--rule); border-radius: 1rem; color: var(--ink);
  font-size: 0.9rem; padding: 0.35rem 0.8rem; text-decoration: none; }
.pair, .cards { display: grid; gap: 1rem 2rem; grid-template-columns: minmax(0, 1fr); }
.pair > *, .cards > * { min-width: 0; }
article { background: var(--panel); border-radius: 0.6rem; padding: 0.8rem; }
article h3 { margin-top: 0; } article p { margin: 0.1rem 0; }
article ol { padding-left: 1.3rem; margin: 0.5rem 0 0; } article ol > li { margin-bottom: 0.7rem; }
.score { color: var(--soft); margin-left: 0.5rem; white-space: nowrap; }
ul.why { font-size: 0.92rem; margin: 0.1rem 0; }
ul.why b { display: inline-block; min-width: 3.2rem; font-variant-numeric: tabular-nums; }
figure { margin: 0.6rem 0; } figcaption { margin-top: 0.4rem; }
.chart { display: block; width: 100%; max-width: 30rem; height: auto; }
svg text { fill: var(--ink); font-size: 12px; }
.grid { stroke: var(--rule); } .line { fill: none; stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; font-size: 0.92rem; }
.legend svg { margin-right: 0.3rem; vertical-align: -2px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.8rem 0;
  width: 100%; }
caption { padding: 0.3rem 0; text-align: left; font-weight: 600; }
th, td { border-bottom: 1px solid var(--rule); padding: 0.35rem 0.5rem; text-align: right;
  vertical-align: top; }
th:first-child { font-weight: 500; text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-size: 0.9rem; }
.bars th { width: 34%; } .bars td { text-align: left; width: 30%; }
.bars td:last-child { font-size: 0.9rem; width: 36%; }
.bar { background: var(--c0); border-radius: 0 3px 3px 0; display: block; height: 0.9rem;
  margin-top: 0.3rem; min-width: 1px; }
dl { display: grid; gap: 0.2rem 1.2rem; margin: 0.5rem 0; }
dt { color: var(--soft); font-size: 0.92rem; } dd { margin: 0 0 0.4rem; }
summary { color: var(--c0); cursor: pointer; font-size: 0.92rem; padding: 0.4rem 0; }
@media (max-width: 34rem) {
  .stack thead { display: none; } .stack tr { display: block; padding: 0.4rem 0;
    border-bottom: 1px solid var(--rule); }
  .stack th, .stack td { border: 0; display: flex; gap: 1rem; justify-content: space-between;
    padding: 0.1rem 0; }
  .stack td::before { color: var(--soft); content: attr(data-label); text-align: left; }
}
@media (min-width: 48rem) {
  .cards { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  .pair { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  dl { grid-template-columns: 16rem 1fr; } dd { margin: 0; }
}
@media print { nav { display: none; } body { max-width: none; font-size: 10pt; }
  figure, article, tr { break-inside: avoid; } }
""" + "".join(
    f".f{i} {{ fill: var(--c{i}); }} .s{i} {{ stroke: var(--c{i}); }}\n" for i in range(6)
)
