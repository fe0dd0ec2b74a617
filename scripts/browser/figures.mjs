// Checks of every figure of a report. Each returns its complaints.

import { readFile } from "node:fs/promises";

/** The smallest readable text on a phone, in pixels. */
const LEAST_TEXT_PX = 9;

/** All figures of a page; the tab of each is opened first. */
export async function eachFigure(page, check) {
  const complaints = [];
  for (const figure of await page.$$("figure[data-plot]")) {
    const about = await figure.evaluate((figure) => ({
      title: figure.querySelector("h4").textContent,
      tab: figure.closest(".panel")?.id.replace("panel-", ""),
      plot: JSON.parse(document.getElementById(figure.dataset.plot)?.textContent || "{}"),
    }));
    if (about.tab) await page.click(`label[for="${about.tab}"]`);
    await figure.evaluate((figure) => figure.scrollIntoView({ block: "center", behavior: "instant" }));
    const found = await check(figure, about);
    complaints.push(...found.map((complaint) => `${about.title}: ${complaint}`));
  }
  return complaints;
}

/** The number of values of a plot, and the least number of shapes that show them. */
function size(plot) {
  const sum = (lists) => (lists ?? []).reduce((total, list) => total + list.length, 0);
  switch (plot.kind) {
    case "lines": return { points: sum(plot.series?.map((series) => series.points)), shapes: plot.series.length };
    case "groups": return { points: sum(plot.words), shapes: sum(plot.words) };
    case "cells": return { points: plot.cells.length, shapes: plot.cells.length };
    // The matrix has each pair twice.
    case "heat": {
      const met = sum(plot.values?.map((row) => row.filter((value) => value !== null)));
      return { points: Math.floor(met / 2), shapes: met };
    }
    default: return { points: 0, shapes: 0 };
  }
}

/** A pixel for each cell, and a colour for each state. */
function cellsInPixels(plot, { width, height, colours }) {
  const across = plot.cells[0].length, down = plot.cells.length;
  if (width !== across || height !== down) return [`has ${width} by ${height} pixels for ${across} by ${down} cells`];
  const states = new Map();
  plot.cells.join("").split("").forEach((state, at) => states.set(state, (states.get(state) ?? new Set()).add(colours[at])));
  const seen = [...states.values()].flatMap((own) => [...own]);
  return seen.length === states.size && new Set(seen).size === states.size ? [] : ["states and colours do not go together"];
}

/** The figure shows one drawing, which contains its data. */
export async function drawn(figure, { plot }) {
  const { points, shapes } = size(plot);
  const shown = await figure.evaluate(async (figure) => {
    const drawing = look.drawing(figure);
    if (!drawing) return null;
    const box = drawing.getBoundingClientRect(), home = figure.getBoundingClientRect();
    const image = drawing.tagName === "IMG";
    return {
      image, across: box.width, down: box.height, inside: box.left >= home.left - 1 && box.right <= home.right + 1,
      n: image ? look.colours(drawing) : look.shapes(drawing), cells: await look.pixelsInside(drawing),
    };
  });
  if (!shown) return ["shows none or several drawings"];
  const complaints = [];
  if (points === 0) complaints.push("its data have no points");
  if (shown.across < 200 || shown.down < 100) complaints.push(`is drawn ${shown.across} by ${shown.down} pixels large`);
  if (!shown.inside) complaints.push("is wider than its figure");
  if (shown.cells) return [...complaints, ...cellsInPixels(plot, shown.cells)];
  // A drawing in pixels has many values and colours, but one colour for each state.
  const least = shown.image ? 4 : shapes;
  if (shown.n < least) complaints.push(`draws ${shown.n} ${shown.image ? "colours" : "shapes"}, not ${least}`);
  return complaints;
}

/** Texts are large enough, lie within the drawing and do not overlap. */
export async function legible(figure, { plot }) {
  const shown = await figure.evaluate((figure) => {
    const drawing = look.drawing(figure);
    const { left, top, right, bottom, width } = drawing.getBoundingClientRect();
    const side = drawing.closest(".narrow") ? "narrow" : "wide";
    return { box: { left, top, right, bottom }, width, side, labels: drawing.tagName === "IMG" ? null : look.labels(drawing) };
  });
  const { box, labels } = shown;
  if (!labels) {
    // Text in pixels cannot be measured; its size follows from that of the drawing.
    const scale = shown.width / plot.sizes.find((size) => size.class === shown.side).width;
    return 12 * scale >= LEAST_TEXT_PX ? [] : [`its pixels are shown ${scale.toFixed(2)} times as large`];
  }
  const complaints = labels.length ? [] : ["has no words"];
  for (const [at, one] of labels.entries()) {
    const name = `"${one.words}"`;
    if (one.size < LEAST_TEXT_PX) complaints.push(`${name} is ${one.size.toFixed(1)} pixels large`);
    const inside = one.left >= box.left - 1 && one.right <= box.right + 1 && one.top >= box.top - 1 && one.bottom <= box.bottom + 1;
    if (!inside) complaints.push(`${name} leaves the drawing`);
    const across = (other) => Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const along = (other) => Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    // The boxes of texts have invisible space above and below.
    const covered = labels.slice(at + 1).find((other) => across(other) > 1 && along(other) > 0.3 * one.size);
    if (covered) complaints.push(`${name} and "${covered.words}" overlap`);
  }
  return complaints;
}

/** The link downloads a CSV file with a heading, rows of its length, and at least one row for each point. */
export async function downloads(page, figure, { plot }) {
  // Chromium starts ten downloads a second and drops the others.
  await page.waitForTimeout(110);
  const begun = page.waitForEvent("download", { timeout: 5000 }).catch(() => null);
  await figure.$("a.csv").then((link) => link.click());
  const download = await begun;
  if (!download) return ["its link gives no file"];
  const complaints = [];
  if (download.suggestedFilename() !== plot.file || !plot.file.endsWith(".csv")) {
    complaints.push(`the file is called ${download.suggestedFilename()}`);
  }
  const [heading, ...rows] = (await readFile(await download.path(), "utf8")).trim().split("\n").map(cells);
  // A row may hold a value for each line of a method.
  const lines_each = plot.kind === "lines" ? plot.series.length / new Set(rows.map(([name]) => name)).size : 1;
  const points = size(plot).points / lines_each;
  if (heading.length < 2 || heading.some((name) => name === "")) complaints.push(`the CSV's heading is "${heading}"`);
  if (rows.length < points || rows.length === 0) complaints.push(`the CSV has ${rows.length} rows for ${points} points`);
  const uneven = rows.find((row) => row.length !== heading.length);
  if (uneven) complaints.push(`the CSV has a row of ${uneven.length} for a heading of ${heading.length}`);
  return complaints;
}

/** The cells of a line of CSV; no cell here has a line break. */
function cells(line) {
  return [...line.matchAll(/(?:^|,)("(?:[^"]|"")*"|[^,]*)/g)].map((match) => match[1]);
}

/** The place in the window at a share of the plotting area's width, and at half of its height. */
async function place(figure, plot, share) {
  return figure.evaluate((figure, { sizes, share }) => {
    const drawing = look.drawing(figure), box = drawing.getBoundingClientRect();
    const { width, area } = sizes.find((size) => drawing.closest(`.${size.class}`));
    const scale = box.width / width;
    return { x: box.left + scale * (area.left + share * (area.right - area.left)), y: box.top + (scale * (area.top + area.bottom)) / 2 };
  }, { sizes: plot.sizes, share });
}

/** The text of the tooltip, or nothing, and whether it lies within the figure. */
async function tip(figure) {
  return figure.evaluate((figure) => {
    const tip = figure.querySelector(".tip");
    if (!tip || !look.seen(tip)) return null;
    const box = tip.getBoundingClientRect(), home = figure.getBoundingClientRect();
    const inside = box.left >= home.left - 1 && box.right <= home.right + 1 && box.top >= home.top - 1 && box.bottom <= home.bottom + 1;
    const fits = tip.scrollWidth <= tip.clientWidth + 1;
    return { words: tip.innerText, inside: inside && fits };
  });
}

function checked(found, plot, where) {
  if (!found) return [`nothing is said ${where}`];
  const [first, ...rest] = found.words.split("\n");
  const states = [...(plot.states ?? []), "not in the run", "never met", "the same"];
  const says = rest.some((line) => /\d/.test(line) || states.includes(line));
  const complaints = says && first ? [] : [`the tooltip ${where} has no value: "${found.words}"`];
  if (!found.inside) complaints.push(`the tooltip ${where} leaves the figure: "${found.words}"`);
  return complaints;
}

/** A tooltip appears under the mouse, at both ends and in the middle, and goes when the mouse leaves. */
export async function pointed(page, figure, { plot }) {
  const complaints = [];
  for (const [where, share] of [["at the left", 0.01], ["in the middle", 0.5], ["at the right", 0.99]]) {
    const { x, y } = await place(figure, plot, share);
    await page.mouse.move(x, y);
    complaints.push(...checked(await tip(figure), plot, where));
  }
  await page.mouse.move(1, 1);
  if (await tip(figure)) complaints.push("the tooltip stays when the mouse has left");
  return complaints;
}

/** A tooltip appears under a finger, stays, and goes with a tap elsewhere. */
export async function touched(page, figure, { plot }) {
  const { x, y } = await place(figure, plot, 0.5);
  await page.touchscreen.tap(x, y);
  const complaints = checked(await tip(figure), plot, "after a tap");
  await page.touchscreen.tap(1, 1);
  if (await tip(figure)) complaints.push("the tooltip stays after a tap elsewhere");
  return complaints;
}
