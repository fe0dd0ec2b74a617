// Breaks copies of a report in many ways, and checks that each is noticed.
//
//     node scripts/browser/broken.test.mjs REPORT.html

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { open, start } from "./browser.mjs";
import { downloads, drawn, eachFigure, legible, pointed, touched } from "./figures.mjs";
import * as whole from "./whole.mjs";

const whole_page = readFileSync(process.argv[2], "utf8");
const folder = mkdtempSync(path.join(tmpdir(), "broken-report-"));
const file = path.join(folder, "report.html");
const style = (rules) => (page) => page.replace("</head>", `<style>${rules}</style></head>`);
const script = (text) => (page) => page.replace("</body>", `<script>${text}</script></body>`);
const swap = (from, to) => (page) => page.replace(from, to);

let browser;
before(async () => { browser = await start(); });
after(async () => {
  await browser?.close();
  rmSync(folder, { recursive: true });
});

/** Breaks the page, and expects a complaint. */
function breaks(name, change, check, complaint, { width = 390, theme = "light", touch = false } = {}) {
  test(name, async () => {
    const broken = change(whole_page);
    assert.notEqual(broken, whole_page, "the report has nothing to break");
    writeFileSync(file, broken);
    const opened = await open(browser, file, { width, theme, touch });
    const found = (await check(opened)).join("\n");
    await opened.page.context().close();
    assert.match(found, complaint);
  });
}

const figures = (check) => ({ page }) => eachFigure(page, (figure, about) => check(page, figure, about));
const plain = (check) => figures((_, figure, about) => check(figure, about));
const away = ({ asked }) => asked.filter((url) => !/^(file|data|blob):/.test(url));

breaks("an image from the network", swap("<main>", '<main><img alt="x" src="https://example.org/x.png">'), away, /example\.org/);
breaks("a script that uses the network", script("fetch('https://example.org/').catch(() => 0)"), away, /example\.org/);
breaks("a script that throws", script("nobody()"), ({ wrong }) => wrong, /nobody is not defined/);
breaks("data that are gone", swap(/(id="data-0">)[^<]*/, "$1{}"), plain(drawn), /its data have no points/);
breaks("a drawing that is gone", style("figure .narrow { display: none !important }"), plain(drawn), /none or several drawings/);
breaks("a drawing without lines", swap(/<polyline[^>]*var\(--p\d+\)[^>]*>|<polygon[^>]*>|<circle[^>]*>/g, ""), plain(drawn), /draws 0 shapes/);
breaks("small words", swap(/font-size="[^"]*"/g, 'font-size="90"'), plain(legible), /is 7\.\d pixels large/);
breaks("large words", swap(/font-size="[^"]*"/g, 'font-size="300"'), plain(legible), /overlap/);
breaks("words beyond the edge", swap(/<text x="\d+"/g, '<text x="4200"'), plain(legible), /leaves the drawing/);
breaks("faint captions", style("figcaption { color: #999 }"), ({ page }) => whole.contrast(page), /caption ".*contrast of 2/);
breaks("faint axes in the dark", style(":root { --soft: #555 !important }"), ({ page }) => whole.contrast(page), /drawing ".*contrast of 2/, { theme: "dark" });
breaks("a table that does not scroll", style(".table { overflow: visible }"), ({ page }) => whole.fits(page), /the page is \d+ wide/);
breaks("a table that is cut off", style("td { padding-left: 9rem }"), ({ page }) => whole.fits(page), /a table is cut off/, { width: 1280 });
breaks("a wide block", style("h1 { width: 500px }"), ({ page }) => whole.fits(page), /H1 .* leaves the window/);
breaks("a button that does nothing", swap("root.dataset.theme = dark", "root.dataset.it = dark"), ({ page }) => whole.themes(page, "light"), /should be dark/);
breaks("no dark", swap(/prefers-color-scheme: dark/g, "prefers-color-scheme: none"), ({ page }) => whole.themes(page, "dark"), /should be dark/, { theme: "dark" });
breaks("panels that stay", style(".tabs > .panel { display: block !important }"), ({ page }) => whole.tabs(page), /shows panel-.*,panel-/);
breaks("a link to nowhere", swap('href="#settings"', 'href="#nowhere"'), ({ page }) => whole.links(page), /which is not there/);
breaks("a drawing without words", swap(/role="img" aria-label="[^"]*"/, ""), ({ page }) => whole.structure(page), /no role or words/);
breaks("no words beside the pointer", style(".tip { visibility: hidden }"), figures(pointed), /nothing is said in the middle/);
breaks("words that leave", style(".tip { margin-left: 300px }"), figures(pointed), /leaves the figure/);
breaks("words without values", swap("tip.textContent = words.join", "tip.textContent = [words[0]].join"), figures(pointed), /has no value/);
breaks("words that stay", swap(/figure\.addEventListener\("pointerleave".*/, ""), figures(pointed), /stays when the mouse has left/);
breaks("words that a finger cannot hold", swap('event.pointerType !== "touch"', "true"), figures(touched), /nothing is said after a tap/, { touch: true });
breaks("a CSV without rows", swap("new Blob([text()]", 'new Blob([text().split("\\n")[0]]'), figures(downloads), /the CSV has 0 rows/);
breaks("a CSV without a name", swap("link.download = plot.file", "link.download = 'x'"), figures(downloads), /the file is called x/);
