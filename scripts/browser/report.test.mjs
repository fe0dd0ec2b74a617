// Opens reports in a browser and checks what a reader sees: light and dark, on a wide screen and on a phone.
//
//     npm --prefix scripts/browser ci
//     node scripts/browser/report.test.mjs REPORT.html...
//
// Needs Node 18 or later, and Chromium on the path or named by CHROMIUM.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { open, start } from "./browser.mjs";
import { downloads, drawn, eachFigure, legible, pointed, touched } from "./figures.mjs";
import * as whole from "./whole.mjs";

const reports = process.argv.slice(2);
assert.notEqual(reports.length, 0, "name the reports to be looked at");

let browser;
before(async () => { browser = await start(); });
after(() => browser?.close());

const none = (complaints) => assert.deepEqual(complaints, []);

for (const report of reports) {
  for (const theme of ["light", "dark"]) {
    for (const width of [1280, 390]) {
      test(`${report}, ${theme}, ${width} wide`, async (t) => {
        const { page, wrong, asked } = await open(browser, report, { theme, width });
        const check = (name, complaints) => t.test(name, async () => none(await complaints()));
        const figures = (name, of) => check(name, () => eachFigure(page, of));
        await check("has a structure that can be read out", () => whole.structure(page));
        await check("has links that lead somewhere", () => whole.links(page));
        await check("fits the window", () => whole.fits(page));
        await check("stands out from its ground", () => whole.contrast(page));
        await check("has tabs that switch", () => whole.tabs(page));
        await figures("draws its data", drawn);
        await figures("has words that can be read", legible);
        await figures("says what is pointed at", (figure, about) => pointed(page, figure, about));
        await figures("gives its data as CSV", (figure, about) => downloads(page, figure, about));
        await check("changes its theme", () => whole.themes(page, theme));
        await check("stands out from the other ground", () => whole.contrast(page));
        await check("asks the network for nothing", () => asked.filter((url) => !/^(file|data|blob):/.test(url)));
        await check("has no errors", () => wrong);
        await page.context().close();
      });
    }
  }

  test(`${report} on a touch screen`, async (t) => {
    const { page } = await open(browser, report, { theme: "light", width: 390, touch: true });
    await t.test("says what is touched", async () => none(await eachFigure(page, (figure, about) => touched(page, figure, about))));
    await page.context().close();
  });

  test(`${report} without its script`, async () => {
    const { page } = await open(browser, report, { theme: "dark", width: 390, scripts: false });
    none(await whole.withoutScript(page));
    await page.context().close();
  });
}
