// Checks of a report as a whole. Each returns its complaints.

/** The contrast that WCAG 2 requires of text that is not large. */
const LEAST_CONTRAST = 4.5;

/** The structure that screen readers need. */
export function structure(page) {
  return page.evaluate(() => {
    const complaints = [];
    const expect = (holds, complaint) => { if (!holds) complaints.push(complaint); };
    const named = (element) => (element.getAttribute("aria-label") ?? "").trim() !== "";
    expect(document.documentElement.lang, "the page has no language");
    expect(document.title.trim(), "the page has no title");
    expect(look.all("h1").length === 1, "there is not just one h1");
    expect(look.all("main").length === 1, "there is not just one main");
    let level = 0;
    for (const heading of look.all("h1, h2, h3, h4, h5, h6")) {
      const next = Number(heading.tagName[1]);
      expect(heading.textContent.trim(), `${heading.tagName} is empty`);
      expect(next <= level + 1, `"${look.words(heading)}" is h${next} after h${level}`);
      level = next;
    }
    for (const image of look.all("img")) expect((image.alt ?? "").trim(), "an image has no words");
    for (const svg of look.all("svg")) {
      const title = svg.closest("figure")?.querySelector("h4").textContent;
      expect(svg.getAttribute("role") === "img" && named(svg), `a drawing has no role or words: ${title}`);
    }
    for (const button of look.all("button")) expect(button.innerText.trim() || named(button), "a button has no words");
    for (const input of look.all("input")) expect(input.labels.length === 1, `${input.id} has no label`);
    for (const part of look.all("[tabindex]")) {
      expect(named(part) && part.getAttribute("role"), `a ${part.className} that can be reached has no role or words`);
    }
    const ids = look.all("[id]").map((element) => element.id);
    const twice = ids.filter((id, at) => ids.indexOf(id) !== at);
    expect(twice.length === 0, `ids that are there twice: ${twice}`);
    return complaints;
  });
}

export function links(page) {
  return page.evaluate(() => {
    const complaints = [], links = look.all("nav a");
    if (links.length === 0) complaints.push("there are no links to the sections");
    for (const link of links) {
      const id = link.getAttribute("href").slice(1);
      const section = document.getElementById(id);
      if (!section) { complaints.push(`"${look.words(link)}" leads to #${id}, which is not there`); continue; }
      link.click();
      const { top } = section.getBoundingClientRect();
      const end = innerHeight + scrollY >= document.scrollingElement.scrollHeight - 2;
      if (top < -1 || (top > 50 && !end)) complaints.push(`"${look.words(link)}" does not lead to its section`);
    }
    return complaints;
  });
}

/** With everything unfolded, only scrollable parts are wider than the window; on a wide screen no table is. */
export async function fits(page) {
  return page.evaluate(() => {
    const complaints = [], window_px = innerWidth;
    for (const details of look.all("details")) details.open = true;
    const { scrollWidth } = document.scrollingElement;
    if (scrollWidth > window_px) complaints.push(`the page is ${scrollWidth} wide, the window ${window_px}`);
    const scrolls = (element) => element && (/auto|scroll/.test(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
    for (const element of look.all("body *").filter((one) => look.seen(one) && !one.closest("svg"))) {
      const { right, left } = element.getBoundingClientRect();
      const out = right > window_px + 1 || left < -1;
      if (out && !scrolls(element.parentElement)) complaints.push(`${element.tagName} "${look.words(element)}" leaves the window`);
    }
    if (window_px >= 1000) {
      for (const table of look.all(".table").filter((one) => one.scrollWidth > one.clientWidth + 1)) {
        complaints.push(`a table is cut off: ${look.words(table)}`);
      }
    }
    for (const details of look.all("details")) details.open = false;
    return complaints;
  });
}

export async function contrast(page) {
  const texts = await page.evaluate(() => look.texts());
  const kinds = ["text", "link", "caption", "cell", "button", "drawing"];
  const missing = kinds.filter((kind) => !texts.some((text) => text.kind === kind));
  const faint = texts.filter((text) => !(text.contrast >= LEAST_CONTRAST));
  return [
    ...missing.map((kind) => `found no ${kind} to look at`),
    ...faint.map(({ kind, words, contrast }) => `${kind} "${words}" has a contrast of ${contrast.toFixed(2)}`),
  ];
}

/** Each tab shows only its own panel, by mouse and by keyboard. */
export async function tabs(page) {
  const complaints = [];
  const groups = await page.$$(".tabs");
  if (groups.length === 0) complaints.push("there are no tabs");
  for (const group of groups) {
    const shown = () => group.evaluate((group) => look.all(".panel", group).filter(look.seen).map((panel) => panel.id).join());
    const ids = await group.$$eval("input", (inputs) => inputs.map((input) => input.id));
    for (const id of [...ids].reverse()) {
      await group.$(`label[for="${id}"]`).then((label) => label.click());
      if ((await shown()) !== `panel-${id}`) complaints.push(`${id} shows ${await shown()}`);
    }
    if (ids.length > 1) {
      await page.keyboard.press("ArrowRight");
      if ((await shown()) !== `panel-${ids[1]}`) complaints.push(`the arrow key after ${ids[0]} shows ${await shown()}`);
    }
  }
  return complaints;
}

/** The page opens in the system's theme; the button changes it and back, images included. */
export async function themes(page, theme) {
  const complaints = [];
  const light = (colour) => colour.split(",").slice(0, 3).reduce((sum, part) => sum + Number(part), 0) > 3 * 128;
  const expect = async (name) => {
    const ground = await page.evaluate(() => look.ground());
    if (light(ground) !== (name === "light")) complaints.push(`the ground is ${ground} where it should be ${name}`);
    const images = await page.$$eval("figure img", (images) => images.filter(look.seen).map((image) => image.className));
    if (images.some((shown) => shown !== name)) complaints.push(`images are ${images} where they should be ${name}`);
  };
  const other = theme === "light" ? "dark" : "light";
  await expect(theme);
  for (const name of [other, theme, other]) {
    await page.click("#theme");
    await expect(name);
  }
  return complaints;
}

/** Without scripts the page shows its drawings, and tabs switch. */
export async function withoutScript(page) {
  const complaints = [];
  const shown = async (figure) => {
    for (const drawing of await figure.$$("svg, img")) if (await drawing.isVisible()) return true;
    return false;
  };
  for (const figure of await page.$$("figure")) {
    const panel = await figure.$("xpath=ancestor::*[contains(@class, 'panel')]");
    const id = await panel?.getAttribute("id");
    if (id) await page.click(`label[for="${id.replace("panel-", "")}"]`);
    if (!(await shown(figure))) complaints.push(`nothing is drawn: ${await figure.$("h4").then((title) => title.textContent())}`);
  }
  return complaints;
}
