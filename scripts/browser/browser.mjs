// Starts the browser that is installed, and opens reports in it as on a phone or on a wide screen.

import { existsSync } from "node:fs";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const NAMES = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const LOOK = fileURLToPath(new URL("look.js", import.meta.url));

/** The browser that CHROMIUM names, or the first one on the path. */
export function start() {
  const folders = (process.env.PATH ?? "").split(path.delimiter);
  const files = NAMES.flatMap((name) => folders.map((folder) => path.join(folder, name)));
  const executablePath = process.env.CHROMIUM ?? files.find(existsSync);
  if (!executablePath) throw new Error(`no browser: install one of ${NAMES.join(", ")}, or let CHROMIUM name it`);
  return chromium.launch({ executablePath, args: FLAGS });
}

/** Opens a report without a network. Errors are collected in `wrong`, and requested URLs in `asked`. */
export async function open(browser, report, { width, theme, scripts = true, touch = false }) {
  const viewport = { width, height: width < 600 ? 844 : 900 };
  const settings = { viewport, colorScheme: theme, javaScriptEnabled: scripts, hasTouch: touch, offline: true };
  const context = await browser.newContext(settings);
  if (scripts) await context.addInitScript({ path: LOOK });
  const page = await context.newPage();
  const wrong = [], asked = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && wrong.push(message.text()));
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("request", (request) => asked.push(request.url()));
  page.on("websocket", (socket) => asked.push(socket.url()));
  await page.goto(pathToFileURL(report).href);
  return { page, wrong, asked };
}
