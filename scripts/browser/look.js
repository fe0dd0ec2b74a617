// Measures in the page what a reader sees. Loaded before the page's own script.

window.look = (() => {
  const seen = (element) => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length > 0;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const words = (element) => element.textContent.trim().replace(/\s+/g, " ").slice(0, 40);

  // Colours are red, green, blue and opacity.
  const colour = (text) => {
    const [red, green, blue, cover = 1] = (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
    return [red, green, blue, cover];
  };
  const over = ([red, green, blue, cover], below) =>
    [red, green, blue].map((part, at) => part * cover + below[at] * (1 - cover)).concat(1);
  const light = (colour) => {
    const linear = colour.slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (element) => {
    if (!element) return [255, 255, 255, 1];
    const own = colour(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own : over(own, ground(element.parentElement));
  };

  const holds = (box, x, y) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
  // The background of a text in a drawing is the last box drawn below its middle.
  const below = (text) => {
    const box = text.getBoundingClientRect(), x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
    const before = (other) => text.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_PRECEDING;
    const boxes = all("rect", text.ownerSVGElement).filter((rect) => before(rect) && holds(rect.getBoundingClientRect(), x, y));
    return boxes.reduce((under, rect) => over(colour(getComputedStyle(rect).fill), under), ground(text.ownerSVGElement));
  };

  const kindOf = (element) =>
    element.closest("svg") ? "drawing" : element.closest("a") ? "link" : element.closest("figcaption") ? "caption"
      : element.closest("td, th") ? "cell" : element.closest("button") ? "button" : "text";
  const ownText = (element) => [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());

  return {
    seen, all, words,

    ground: () => ground(document.body).join(),

    /** Every visible text: its kind, its words and its contrast. */
    texts: () => all("body, body *").filter((element) => !element.closest("script, style") && ownText(element) && seen(element))
      .map((element) => {
        const drawn = element.closest("svg") !== null, style = getComputedStyle(element);
        const under = drawn ? below(element) : ground(element);
        const ink = over(colour(drawn ? style.fill : style.color), under);
        return { kind: kindOf(element), words: words(element), contrast: contrast(ink, under) };
      }),

    /** The visible drawing of a figure; null unless there is exactly one. */
    drawing(figure) {
      const drawings = all("svg, img", figure).filter(seen);
      return drawings.length === 1 ? drawings[0] : null;
    },

    /** The texts of a drawing, with their sizes and places. */
    labels: (svg) => all("text", svg).map((text) => {
      const box = text.getBoundingClientRect(), turn = text.getScreenCTM();
      const size = parseFloat(getComputedStyle(text).fontSize) * Math.sqrt(Math.abs(turn.a * turn.d - turn.b * turn.c));
      return { words: words(text), size, left: box.left, top: box.top, right: box.right, bottom: box.bottom };
    }),

    /** The number of a drawing's shapes other than background, axes and texts. */
    shapes(svg) {
      const plain = /^(none|var\(--(ground|ink|soft|grid)\)|)$/;
      const has = (shape, name) => !plain.test(shape.getAttribute(name) ?? "");
      return all("path, rect, polyline, polygon, circle, line", svg).filter((one) => has(one, "fill") || has(one, "stroke")).length;
    },

    /** The pixels of the image within a drawing, row by row; nothing if there is none. */
    async pixelsInside(drawing) {
      const inside = drawing.querySelector?.("image");
      if (!inside) return null;
      const image = Object.assign(new Image(), { src: inside.getAttribute("href") });
      await image.decode();
      const [width, height] = [image.naturalWidth, image.naturalHeight];
      const pen = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d");
      pen.drawImage(image, 0, 0);
      const bytes = pen.getImageData(0, 0, width, height).data;
      const colours = Array.from({ length: width * height }, (_, at) => bytes.slice(4 * at, 4 * at + 4).join());
      return { width, height, colours };
    },
    /** The number of colours in an image. */
    colours(image) {
      const canvas = Object.assign(document.createElement("canvas"), { width: image.naturalWidth, height: image.naturalHeight });
      if (!canvas.width || !canvas.height) return 0;
      const pen = canvas.getContext("2d");
      pen.drawImage(image, 0, 0);
      return new Set(new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size;
    },
  };
})();
