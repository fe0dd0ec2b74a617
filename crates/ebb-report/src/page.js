"use strict";
const short = (x) => (Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(4)));
const nearest = (points, x) => points.reduce((best, one) => (Math.abs(one[0] - x) < Math.abs(best[0] - x) ? one : best));
const inside = (at, count) => Math.min(count - 1, Math.max(0, Math.floor(at)));
const span = (first, each, end) => {
  const last = Math.min(first + each, end) - 1;
  return last === first ? String(first) : first + " to " + last;
};
// The lines of the tooltip at a place in the plot's own values, and where its vertical line stands.
const say = {
  lines(plot, area, x) {
    const at = nearest(plot.series.flatMap((s) => s.points), x)[0];
    const near = Math.abs(area.across[1] - area.across[0]) / 50;
    const words = plot.series.flatMap((s) => {
      const p = nearest(s.points, at);
      // On a phone the intervals would hide the plot.
      const band = p.length > 2 && innerWidth > 600 ? " (" + short(p[2]) + " to " + short(p[3]) + ")" : "";
      return Math.abs(p[0] - at) > near ? [] : s.name + "  " + short(p[1]) + band;
    });
    return [at, [plot.x.split(",")[0] + " " + short(at), ...words]];
  },
  groups(plot, area, x) {
    const group = inside(x, plot.groups.length);
    return [group + 0.5, [plot.groups[group], ...plot.words[group]]];
  },
  cells(plot, area, x, y) {
    const [clients, rounds] = plot.each, end = plot.first + plot.of[1];
    const row = inside(y, plot.cells.length), column = inside((x - plot.first + 0.5) / rounds, plot.cells[0].length);
    const state = plot.states[plot.cells[row][column]] || "not in the run", round = plot.first + column * rounds;
    const named = ["client " + span(row * clients, clients, plot.of[0]), "round " + span(round, rounds, end)];
    return [(round + Math.min(round + rounds, end) - 1) / 2, [...named, state]];
  },
  heat(plot, area, x, y) {
    const row = inside(y, plot.values.length), column = inside(x, plot.values.length);
    const value = plot.values[row][column], name = (at) => plot.rows[at] || "in place " + at;
    return [column + 0.5, ["clients " + name(row) + " and " + name(column), value === null ? (row === column ? "the same" : "never met") : short(value)]];
  },
};
const quoted = (cell) => (/[",\n]/.test(cell) ? '"' + String(cell).replaceAll('"', '""') + '"' : cell);
const csv = {
  lines: (plot) => [plot.heading, ...plot.series.flatMap((s) => s.points.map((p) => plot.heading.map((_, at) => [s.name, ...p][at] ?? "")))],
  cells: (plot) => [["client \\ round", ...plot.cells[0].split("").map((_, at) => plot.first + at * plot.each[1])],
    ...plot.cells.map((row, at) => [at * plot.each[0], ...row.split("").map((state) => plot.states[state] || "")])],
};
for (const figure of document.querySelectorAll("figure[data-plot]")) {
  const plot = JSON.parse(document.getElementById(figure.dataset.plot).textContent);
  const link = figure.querySelector("a.csv");
  link.download = plot.file;
  const text = () => plot.csv || csv[plot.kind](plot).map((row) => row.map(quoted).join(",")).join("\n") + "\n";
  link.addEventListener("click", () => { link.href = URL.createObjectURL(new Blob([text()], { type: "text/csv" })); });
  const add = (name) => figure.appendChild(Object.assign(document.createElement("div"), { className: name }));
  const tip = add("tip"), line = add("line");
  const hide = () => { tip.style.display = line.style.display = "none"; };
  const show = (event) => {
    const shown = [...figure.querySelectorAll("svg, img")].find((one) => one.getClientRects().length);
    const size = shown && plot.sizes.find((one) => shown.closest("." + one.class));
    if (!size || !size.area) return hide();
    const area = size.area, box = shown.getBoundingClientRect(), home = figure.getBoundingClientRect();
    const scale = box.width / size.width;
    const x = (event.clientX - box.left) / scale, y = (event.clientY - box.top) / scale;
    if (x < area.left || x > area.right || y < area.top || y > area.bottom) return hide();
    const part = (at, from, to, range) => range[0] + ((at - from) / (to - from)) * (range[1] - range[0]);
    const [at, words] = say[plot.kind](plot, area, part(x, area.left, area.right, area.across), part(y, area.top, area.bottom, area.down));
    const place = box.left - home.left + scale * part(at, area.across[0], area.across[1], [area.left, area.right]);
    const top = box.top - home.top + scale * area.top;
    Object.assign(line.style, { display: "block", left: place + "px", top: top + "px", height: scale * (area.bottom - area.top) + "px" });
    tip.textContent = words.join("\n");
    tip.style.display = "block";
    // Right of the line if the tooltip fits there, else left of it.
    const room = home.width - tip.offsetWidth - 4;
    const beside = place + 12 <= room || place - 12 < tip.offsetWidth ? place + 12 : place - 12 - tip.offsetWidth;
    tip.style.left = Math.max(0, Math.min(beside, room)) + "px";
    tip.style.top = top + 8 + "px";
  };
  figure.addEventListener("pointermove", show);
  figure.addEventListener("pointerdown", show);
  // A lifted finger also leaves the figure: its tooltip stays until the next tap elsewhere.
  figure.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });
  document.addEventListener("pointerdown", (event) => { if (!figure.contains(event.target)) hide(); });
}
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
